"""The command line: one clear line for a mistake, the choices in it, and the exit codes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.api.spec import HARMS, Verdict
from harness.bugs.results import RunResult
from harness.cli import commands, pages, summary
from harness.run import executor, suite
from harness.run.run_config import RunConfig
from harness.system.errors import Unsupported
from harness.system.files import ROOT
from harness.system.text import CONTROL
from tests import made_up
from tests.made_up import scenario_files
from tests.recording import RECORDED, Recording, stored_verdict
from tests.sandbox import refused

Capture = pytest.CaptureFixture[str]
MonkeyPatch = pytest.MonkeyPatch
BUG = "scenario=bf16_clip"
RUN = ["run", BUG]
SITE = ["site", "--out", "box"]
LACKS_GPUS = "lane=gpu"
"""If no GPU is visible, a run gets its verdict without a launch."""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, cache: Path, runs: Path) -> Iterator[None]:
    """Use a new folder, cache and runs; restore the handler of SIGTERM."""
    handler, cwd = signal.getsignal(signal.SIGTERM), Path.cwd()
    os.chdir(tmp_path)
    yield
    os.chdir(cwd)
    signal.signal(signal.SIGTERM, handler)


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["rnu"], ["no command 'rnu'", "mean run?", "list, lock, matrix"]),
    (["run"], ["scenario=NAME", "harness list"]),
    (["run", "scenario=bf16"], ["no scenario 'bf16'", "mean bf16_clip? The nearest"]),
    ([*RUN, "sed=1"], ["no key 'sed'", "mean seed?", "variant, seed, date"]),
    ([*RUN, "scenario.gradclip=1"], ["no key 'scenario.gradclip'", "scenario.gradient_clipping"]),
    ([*RUN, "launch.timout=1"], ["mean launch.timeout?", "launch.threads"]),
    ([*RUN, "variant=bugy"], ["no variant 'bugy'", "mean buggy?", "fixed, control", "all"]),
    ([*RUN, "lane=tpu"], ["no lane 'tpu'", "auto, cpu, gpu"]),
    ([*RUN, "seed=abc"], ["seed=abc", "write a whole number"]),
    ([*RUN, "scenario.lr=fast"], ["scenario.lr=fast", "write a number"]),
    ([*RUN, "scenario.optimizer=lion"], ["scenario.optimizer=lion", "choose sgd or adam"]),
    ([*RUN, "pins.deepspeed=abc"], ["pins.deepspeed=abc is not a version", "0.15.4"]),
    ([*RUN, "pins.torch=2.0"], ["no key 'pins.torch'", "pins.deepspeed, pins.megatron-core"]),
    ([*RUN, "bare"], ["bare"]),
    ([*RUN, "runs=a:b"], ["/a:b contains ':'"]),
    ([*RUN, "lane=null"], ["no lane 'null'"]),
    (["run", "fp16_overflow"], ["'fp16_overflow' is no KEY=VALUE", "scenario=fp16_overflow"]),
    (["run", "nothing"], ["'nothing' is no KEY=VALUE", "scenario=bf16_clip"]),
    (["run", "scenario=bf16_clip,seed_ignored"], ["several values need --multirun"]),
    ([*RUN, "+foo=1"], ["no key 'foo'", "variant"]),
    ([*RUN, "+scenario.foo=1"], ["no key 'scenario.foo'", "scenario.lr"]),
    ([*RUN, "scenario.lr=nan"], ["scenario.lr=nan: must be above 0 and finite"]),
    (["run", "--multirun", BUG, "seed=1,2", "sed=1"], ["no key 'sed'", "mean seed?"]),
    (["run", "--multirun", BUG, "variant=bugy,fxed"], ["no variant 'bugy'", "buggy, fixed"]),
    (["show"], ["scenario"]),
    (["show", "bf16"], ["no scenario 'bf16'", "mean bf16_clip? The nearest"]),
    (["show", "bf16_clip", "pins.deepseed=1"], ["mean deepspeed?", "megatron-core"]),
    (["show", "bf16_clip", "deepspeed"], ["'deepspeed' is no pin", "pins.deepspeed=0.15.4"]),
    (["show", "bf16_clip", "pins.deepspeed=abc"], ["pins.deepspeed=abc is not a version"]),
    (["list", "--jsn"], ["--jsn", "list --help"]),
    (["grade"], ["run", "grade --help"]),
    (["grade", "nothing"], ["nothing is not a run folder"]),
    (["clean", "nothing"], ["no overlay 'nothing'"]),
    (["bundle", "bf16", "--out", "box"], ["no scenario 'bf16'", "mean bf16_clip? The nearest"]),
    (["bundle", "bf16_clip"], ["--out"]),
    (["lock", "bf16_clap"], ["mean bf16_clip?"]),
    (["pages", "bf16_clop"], ["mean bf16_clip?"]),
    (["admit"], ["KEY=VALUE"]),
    (["admit", BUG, "variant=buggy"], ["remove variant=buggy"]),
    (["admit", "scenario=bf16_clop"], ["mean bf16_clip?"]),
    ([*SITE, "--history", "nowhere.jsonl"], ["no history nowhere.jsonl"]),
    ([*SITE, "--histori", "x", "--nights"], ["see python -m harness site --help"]),
    ([*RUN, "hydra/launcher=submitit_slurm"], ["no effect here: on=slurm sends runs to Slurm"]),
    ([*RUN, "on=slrum"], ["mean slurm?"]),
    ([*RUN, "on.partition=gpu"], ["on.partition has no effect on this machine: add on=slurm"]),
    ([*RUN, "on=slurm", "jobs=2"], ["jobs has no effect with on=slurm: on.most limits"]),
    ([*RUN, "on=slurm", "on.most=0"], ["on.most=0: choose 1 or more"]),
    ([*RUN, "on=slurm", "on.overlays=there"], ["no maker of overlays 'there'"]),
    ([*RUN, "on=slurm", "on.gpus=2", "lane=cpu"], ["on.gpus has no effect with lane=cpu"]),
    ([*RUN, "on=slurm", "+on.nodes=2"], ["on.nodes"]),
]


@pytest.mark.parametrize(("words", "parts"), MISTAKES, ids=lambda part: " ".join(part)[:40])
def test_a_mistake_is_one_line_that_names_the_choices(
    words: list[str], parts: list[str], capsys: Capture, runs: Path
) -> None:
    err = refused(capsys, words)
    assert all(part in err for part in parts), err
    assert not list(runs.glob("*/run.json"))
    assert not list(runs.glob("*bf16_clip*"))
    assert not Path("box").exists()


def test_without_a_command_the_commands_are_shown(capsys: Capture) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for command in commands():
        assert out.count(f"\n  {command} ") == 2
        assert summary(command), f"{command} has no line that says what it does"


def test_a_recorded_run_is_graded_with_the_exit_code_of_its_verdict(
    recording: Recording, capsys: Capture
) -> None:
    assert main(["grade", str(recording.folder)]) == 0
    assert "bf16_clip: reproduced\n" in capsys.readouterr().out
    recording.rank_file("fixed").unlink()
    assert main(["grade", str(recording.folder)]) == 3
    assert "  fixed: rank 1 left no complete records\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 100_000, "run.json: it is nested more than 50 deep"),
        ("[]", "run.json is not the record of a run"),
        ("{", "run.json: Expecting property name"),
        ('{"format": ' + "1" * 5000 + "}", "run.json: it contains a number with more than 300"),
    ],
)
def test_a_folder_with_another_run_json_is_a_mistake(
    text: str, why: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "run.json").write_text(text)
    assert why in refused(capsys, ["grade", str(tmp_path)])


def test_a_grade_as_json_is_the_stored_verdict(capsys: Capture) -> None:
    assert main(["grade", str(RECORDED), "--json"]) == 0
    stored = stored_verdict(RECORDED)
    assert json.loads(capsys.readouterr().out) == {k: stored[k] for k in stored if k != "seconds"}
    assert f"Choices: {RECORDED}." in refused(capsys, ["grade", str(RECORDED.parent / "rnu")])


def test_an_empty_cache_has_nothing_to_free(capsys: Capture) -> None:
    assert main(["clean"]) == 0
    assert "freed 0 of 0: 0.0 MB" in capsys.readouterr().out


def pretend(monkeypatch: MonkeyPatch, **verdicts: Verdict) -> list[str]:
    """Let runs end without a launch, REPRODUCED or as their seed says; returns scenarios."""
    scenarios: list[str] = []

    def run(config: RunConfig, *_: object) -> tuple[RunResult, Path]:
        catalog.scenario(config.scenario)
        scenarios.append(config.scenario)
        verdict = verdicts.get(f"seed_{config.seed}", Verdict.REPRODUCED)
        return RunResult(config.scenario, verdict, (), ()), Path()

    for module in (executor, suite):  # one run, and several
        monkeypatch.setattr(module, "run", run)
    monkeypatch.setattr(suite, "make_overlay", lambda *_: None)
    monkeypatch.setattr("harness.run.suite.prepared", lambda *_: None)
    return scenarios


def test_a_sweep_ends_with_its_worst_exit_code(monkeypatch: MonkeyPatch) -> None:
    pretend(monkeypatch, seed_1=Verdict.NOT_REPRODUCED, seed_2=Verdict.INCONCLUSIVE)
    assert main(["run", "--multirun", BUG, "seed=1,2,3"]) == 1
    assert main(["run", BUG, "seed=2"]) == 3


def test_a_run_of_a_sweep_that_fails_does_not_end_the_others(monkeypatch: MonkeyPatch) -> None:
    seeds = list[int]()

    def fail_first(config: RunConfig) -> None:
        seeds.append(config.seed)
        raise Unsupported(f"seed {config.seed}")

    monkeypatch.setattr(executor, "run", fail_first)
    assert main(["run", "--multirun", BUG, "seed=1,2"]) == 4
    assert seeds == [1, 2]


def test_an_interrupted_run_says_so(monkeypatch: MonkeyPatch, capsys: Capture) -> None:
    def interrupt(config: RunConfig) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(executor, "run", interrupt)
    assert main(RUN) == 130
    assert "harness: interrupted" in capsys.readouterr().err


def test_a_sweep_with_a_mistake_runs_nothing(monkeypatch: MonkeyPatch, runs: Path) -> None:
    scenarios = pretend(monkeypatch)
    assert main(["run", "--multirun", BUG, "scenario.lr=1,-1"]) == 2
    assert scenarios == []
    assert not runs.exists()


SWEEP = ["run", "--multirun", BUG, "seed=1,2"]
FAULTS: list[tuple[list[str], Exception, str]] = [
    (RUN, TypeError("wrong\n\x1b[2Jtype"), r"TypeError: wrong \x1b[2Jtype"),
    (SWEEP, TypeError("wrong"), "TypeError: wrong"),
    (RUN, AssertionError(), "AssertionError"),
    (RUN, MemoryError(), "MemoryError"),
    (RUN, OSError(28, "No space left on device", "/file"), "no room on the disk for /file"),
    (RUN, OSError(122, "Disk quota exceeded", "/file"), "no room on the disk for /file"),
    (RUN, OSError(18, "Invalid cross-device link", "/a", None, "/b"), "/a -> /b: Invalid cross-"),
]


@pytest.mark.parametrize(("words", "fault", "line"), FAULTS, ids=lambda part: type(part).__name__)
def test_an_unexpected_exception_is_one_line_and_inconclusive(
    words: list[str], fault: Exception, line: str, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    _fails_with(fault, monkeypatch)
    err = refused(capsys, words, code=3)
    assert err.startswith(f"harness: {line}")
    assert err.endswith("; --debug prints the traceback\n")
    assert "\x1b" not in err


@pytest.mark.parametrize("where", ["first", "last", "environment"])
def test_debug_shows_where_it_went_wrong(
    where: str, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    _fails_with(TypeError("wrong"), monkeypatch)
    words = {"first": ["--debug", *RUN], "last": [*RUN, "--debug"], "environment": RUN}[where]
    monkeypatch.setenv("HARNESS_DEBUG", "1" if where == "environment" else "0")
    assert main(words) == 3
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "in fail\n" in err
    assert err.endswith("harness: TypeError: wrong\n")


@pytest.mark.parametrize(
    ("script", "name"), [("bin/distributed-bugs", "distributed-bugs"), ("x", "harness")]
)
def test_a_message_begins_with_the_name_of_the_program(script: str, name: str) -> None:
    start = "import runpy, sys; sys.argv[0] = %r; runpy.run_module('harness', run_name='__main__')"
    command = [sys.executable, "-c", start % script, "rnu"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.stderr.startswith(f"{name}: no command 'rnu'")


def _fails_with(fault: Exception, monkeypatch: MonkeyPatch) -> None:
    def fail(config: RunConfig) -> None:
        raise fault

    monkeypatch.setattr(executor, "run", fail)


@pytest.mark.parametrize("words", [["show", "bf16_clip"], ["clean"]], ids=" ".join)
def test_a_cache_that_is_a_file_is_one_line(
    words: list[str], cache: Path, runs: Path, capsys: Capture
) -> None:
    cache.touch()
    assert f"harness: the cache {cache} is not a folder: name " in refused(capsys, words, code=3)
    assert not runs.exists()


@pytest.mark.parametrize(
    ("name", "code", "part"), [("a:b", 2, "HARNESS_CACHE="), ("file/below", 3, "/file/below")]
)
def test_a_cache_that_cannot_be_used_is_named(
    name: str, code: int, part: str, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / name))
    assert main(RUN) == code
    assert part in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["file"]


@pytest.fixture
def broken(more_scenarios: Path) -> str:
    """The name of a scenario whose bug.toml has a mistake."""
    scenario_files(more_scenarios, "broken", bug=f"harm = 'much'\n{made_up.BUG}")
    return "broken"


LINE = f"broken/bug.toml: no harm 'much'. Choices: {', '.join(HARMS)}."


@pytest.mark.slow
def test_a_broken_scenario_is_reported_and_another_one_works(
    broken: str, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    scenarios = pretend(monkeypatch)
    assert main(RUN) == 0
    assert main(["run", "--cfg", "job", BUG]) == 0
    assert main(["run", "--help"]) == 0
    assert f"The parameters of {catalog.sound()[0]}" in capsys.readouterr().out
    assert main(["run", f"scenario={broken}", "scenario.lr=1"]) == 3
    assert capsys.readouterr().err.endswith(f"{LINE}\n")
    assert LINE in refused(capsys, ["run", "scenario=all"], code=3)
    assert scenarios == ["bf16_clip"]


def test_the_list_says_which_scenario_is_broken(broken: str, capsys: Capture) -> None:
    assert main(["list"]) == 0
    (row,) = [row for row in capsys.readouterr().out.splitlines() if row.startswith("broken ")]
    assert row.split()[1] == "broken"
    assert row.rstrip().endswith(LINE)
    assert main(["list", "--json"]) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    assert listed["broken"]["broken"].endswith(LINE)
    assert "broken" not in listed["bf16_clip"]
    assert listed["bf16_clip"]["variants"]["buggy"]["expect"] == "symptom"
    assert listed["bf16_clip"]["variants"]["reference"]["ranks"] == 1


def test_a_scenario_with_a_default_beyond_its_bounds_is_broken_alone(
    more_scenarios: Path, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    scenario_files(more_scenarios, "beyond", bug=made_up.BUG.replace("0.1", "-1.0"))
    catalog.forget()
    pretend(monkeypatch)
    assert main(RUN) == 0
    assert main(["run", "scenario=beyond"]) == 3
    assert "beyond/bug.toml: scenario.lr=-1.0: must be above 0" in capsys.readouterr().err


@pytest.mark.slow
def test_check_of_the_others_goes_on_and_is_inconclusive_if_strict(
    broken: str, tmp_path: Path, capsys: Capture
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("deepspeed==0.13.3\n")
    stack = ["-r", str(requirements)]
    assert main(["check", *stack]) == 1
    out = capsys.readouterr().out
    assert LINE in out
    assert "warmup_first_step" in out
    assert main(["check", "scenario=clip_max_for_min", *stack]) == 0
    assert main(["check", f"scenario={broken}", *stack]) == 3


def test_pages_of_the_others_are_written_and_those_of_all_stay(
    broken: str, folders: Path, tmp_path: Path, monkeypatch: MonkeyPatch, capsys: Capture
) -> None:
    table = tmp_path / "bugs.md"
    table.write_text("all of them")
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    assert main(["pages"]) == 3
    assert f"not that of broken: scenarios/another_upstream/{LINE}" in capsys.readouterr().out
    assert (folders / "deepspeed" / "bf16_clip" / "README.md").is_file()
    assert table.read_text() == "all of them"


ESCAPES = "\x1b]0;mine\x07\x1b[2J\x9b1m\u202egnorw\r[red]x[/] :bug: \ud800"


def test_control_characters_of_a_run_do_not_reach_the_terminal(
    recording: Recording, capsys: Capture
) -> None:
    with recording.exit("buggy") as ended:
        ended |= {"code": 1, "failure": {"rank": 1, "message": ESCAPES}}
    for words in ([], ["--json"]):
        assert main(["grade", str(recording.folder), *words]) == 3
        out = capsys.readouterr().out
        assert not CONTROL.search(out)
        assert "[red]x[/] :bug: " in out
    assert main(["grade", f"\x1b[2J{recording.folder}"]) == 2
    assert not CONTROL.search(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["list"], ["run", BUG, LACKS_GPUS]], ids=" ".join)
def test_modules_in_the_working_directory_are_not_imported(
    words: list[str], tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    packages = (f"{name}/__init__" for name in ("scenarios", "configs", "hydra_plugins"))
    for name in (*packages, "torch", "rich", "json"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / f"{name}.py").write_text("raise SystemExit('theirs')\n")
    (theirs / "configs" / "config.yaml").write_text("theirs: 1\n")
    process = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=theirs,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )
    assert process.returncode == (0 if words == ["list"] else 4), process.stderr
    assert "bf16_clip" in process.stdout
    assert "theirs" not in process.stdout + process.stderr


def test_python_is_named_in_full_where_path_has_a_relative_folder(tmp_path: Path) -> None:
    """uv and ranks start Python in other folders."""
    program = Path(sys.executable)
    folder, name = os.path.relpath(program.parent, tmp_path), program.name
    process = subprocess.run(
        ["sh", "-c", f"{name} -c 'import harness, sys; print(sys.executable)'"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout.strip() == os.path.abspath(program), process.stderr


def test_a_signal_while_python_ends_is_ignored() -> None:
    late = f"import atexit, os\natexit.register(os.kill, os.getpid(), {signal.SIGTERM.value})\n"
    code = late + "import runpy\nrunpy.run_module('harness', run_name='__main__')\n"
    process = subprocess.run(
        [sys.executable, "-c", code, "list"], cwd=ROOT, capture_output=True, check=False
    )
    assert (process.returncode, process.stderr) == (0, b"")


def test_the_version_names_the_release_and_the_commit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.match(r"distributed-bugs \d+\.\d+\.\d+", capsys.readouterr().out)
