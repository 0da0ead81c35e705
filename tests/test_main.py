"""The command line: one clear line for a mistake, the choices in it, and the exit codes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.config import RunConfig
from harness.spec import RunResult, Verdict
from harness.sweep import suite
from harness.verbs import verbs
from tests.recording import RECORDED, Recording

Capture = pytest.CaptureFixture[str]
BUG = "scenario=bf16_clip"
RUN = ["run", BUG]


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, cache: Path, runs: Path) -> Iterator[None]:
    """Away from the user's cache and runs; the handler of SIGTERM is put back."""
    before, here = signal.getsignal(signal.SIGTERM), Path.cwd()
    os.chdir(tmp_path)
    yield
    os.chdir(here)
    signal.signal(signal.SIGTERM, before)


MISTAKES: list[tuple[list[str], list[str]]] = [
    (["rnu"], ["no verb 'rnu'", "mean run?", "list, matrix"]),
    (["run"], ["scenario=NAME", "bf16_clip"]),
    (["run", "scenario=bf16"], ["no scenario 'bf16'", "Choices: bf16_clip"]),
    ([*RUN, "sed=1"], ["no key 'sed'", "mean seed?", "variant, seed, date"]),
    ([*RUN, "scenario.gradclip=1"], ["no key 'scenario.gradclip'", "scenario.gradient_clipping"]),
    ([*RUN, "launch.timout=1"], ["mean launch.timeout?", "launch.threads"]),
    ([*RUN, "variant=bugy"], ["no variant 'bugy'", "mean buggy?", "fixed, control", "all"]),
    ([*RUN, "launch=tpu"], ["no launch 'tpu'", "auto, cpu, gpu"]),
    ([*RUN, "seed=abc"], ["seed=abc", "could not be converted to Integer"]),
    ([*RUN, "scenario.lr=fast"], ["scenario.lr=fast", "could not be converted to Float"]),
    ([*RUN, "scenario.optimizer=lion"], ["scenario.optimizer=lion", "choose sgd or adam"]),
    ([*RUN, "pins.deepspeed=abc"], ["pins.deepspeed=abc is no version", "0.15.4"]),
    ([*RUN, "pins.torch=2.0"], ["no key 'pins.torch'", "pins.deepspeed, pins.megatron-core"]),
    ([*RUN, "bare"], ["bare"]),
    ([*RUN, "launch=null"], ["launch=null"]),
    ([*RUN, "+foo=1"], ["no key 'foo'", "variant"]),
    ([*RUN, "+scenario.foo=1"], ["no key 'scenario.foo'", "scenario.lr"]),
    ([*RUN, "+pins.torch=2.0"], ["no key 'pins.torch'", "pins.deepspeed"]),
    ([*RUN, "scenario.lr=nan"], ["scenario.lr=nan: must be above 0, finite"]),
    (["run", "--multirun", BUG, "seed=1,2", "sed=1"], ["no key 'sed'", "mean seed?"]),
    (["run", "--multirun", BUG, "variant=bugy,fxed"], ["no variant 'bugy'", "buggy, fixed"]),
    (["show"], ["scenario"]),
    (["show", "bf16"], ["no scenario 'bf16'", "Choices: bf16_clip"]),
    (["show", "bf16_clip", "pins.deepseed=1"], ["mean deepspeed?", "megatron-core"]),
    (["show", "bf16_clip", "deepspeed"], ["'deepspeed' is no pin", "pins.deepspeed=0.15.4"]),
    (["show", "bf16_clip", "pins.deepspeed=abc"], ["pins.deepspeed=abc is no version"]),
    (["list", "--jsn"], ["--jsn", "list --help"]),
    (["grade"], ["run", "grade --help"]),
    (["grade", "nothing"], ["nothing is no run folder"]),
    (["clean", "nothing"], ["no overlay 'nothing'"]),
    (["bundle", "bf16", "--out", "box"], ["no scenario 'bf16'", "Choices: bf16_clip"]),
    (["bundle", "bf16_clip"], ["--out"]),
]


@pytest.mark.parametrize(("words", "told"), MISTAKES, ids=lambda part: " ".join(part)[:40])
def test_a_mistake_is_one_line_that_names_the_choices(
    words: list[str], told: list[str], capsys: Capture, runs: Path
) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith("harness: ")
    assert err.count("\n") == 1
    for part in told:
        assert part in err
    assert not list(runs.glob("*/run.json"))
    assert not list(runs.glob("*bf16_clip*"))
    assert not Path("box").exists()


def test_without_a_verb_the_verbs_are_shown(capsys: Capture) -> None:
    assert main([]) == 2
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for verb in verbs():
        assert out.count(f"\n  {verb} ") == 2
        assert verbs()[verb], f"{verb} has no line that tells what it does"


def test_a_recorded_run_is_graded_with_the_exit_code_of_its_verdict(
    recording: Recording, capsys: Capture
) -> None:
    assert main(["grade", str(recording.folder)]) == 0
    assert "bf16_clip: reproduced\n" in capsys.readouterr().out
    recording.rank_file("fixed").unlink()
    assert main(["grade", str(recording.folder)]) == 3
    assert "  fixed: rank 1 left no complete records\n" in capsys.readouterr().out


def test_a_grade_as_json_is_the_stored_verdict(capsys: Capture) -> None:
    assert main(["grade", str(RECORDED), "--json"]) == 0
    stored = json.loads((RECORDED / "verdict.json").read_text())
    assert json.loads(capsys.readouterr().out) == {k: stored[k] for k in stored if k != "seconds"}


def test_a_wrong_folder_gets_the_runs_beside_it(recording: Recording, capsys: Capture) -> None:
    assert main(["grade", str(recording.folder.parent / "rnu")]) == 2
    assert f"Choices: {recording.folder}." in capsys.readouterr().err


def test_the_list_as_json_has_every_scenario_with_its_variants(capsys: Capture) -> None:
    assert main(["list", "--json"]) == 0
    (told,) = [each for each in json.loads(capsys.readouterr().out) if each["name"] == "bf16_clip"]
    assert told["variants"]["buggy"]["expect"] == "symptom"
    assert told["variants"]["reference"]["ranks"] == 1


def test_an_empty_cache_has_nothing_to_free(capsys: Capture) -> None:
    assert main(["clean"]) == 0
    assert "freed 0 of 0: 0.0 MB" in capsys.readouterr().out


def test_a_sweep_ends_with_its_worst_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = {1: Verdict.NOT_REPRODUCED, 2: Verdict.INCONCLUSIVE, 3: Verdict.REPRODUCED}

    def pretend(config: RunConfig) -> tuple[RunResult, Path]:
        return RunResult("bf16_clip", verdicts[config.seed], (), ()), Path()

    monkeypatch.setattr(suite, "run", pretend)
    assert main(["run", "--multirun", BUG, "seed=1,2,3"]) == 1
    assert main(["run", BUG, "seed=2"]) == 3


def test_an_interrupted_run_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupt(config: RunConfig) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(suite, "run", interrupt)
    assert main(RUN) == 130
    assert "harness: interrupted" in capsys.readouterr().err


def test_a_sweep_that_was_refused_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, runs: Path
) -> None:
    monkeypatch.setattr(suite, "run", lambda config: (RunResult("bf16_clip", Verdict.REPRODUCED,
                                                                (), ()), Path()))  # fmt: skip
    assert main(["run", "--multirun", BUG, "scenario.lr=-1,-2"]) == 2
    assert not runs.exists()
    assert main(["run", "--multirun", BUG, "scenario.lr=-1,1"]) == 2
    assert len(list(runs.glob("multirun/*/multirun.yaml"))) == 1, "one of them did run"
