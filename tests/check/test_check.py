"""Checking an environment: from recorded results, by runs, and what is printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.api.settings import Setting
from harness.bugs.api.spec import HARMS
from harness.bugs.pins import Distribution, Interpreter
from harness.check import live
from harness.check.bug_status import BugStatus, Checked, recorded
from harness.check.check_report import for_github, summary
from harness.check.environment import Environment, of_files, of_this_interpreter
from harness.check.installed import DEPENDENCY, Installed, described, merged
from harness.check.synonyms import PUBLISHED
from harness.releases import overlay
from harness.system.errors import Inconclusive, Unsupported
from harness.system.terminal import Progress, terminal
from tests.check import stacks
from tests.made_up import NO, YES, Upstream
from tests.overlays import lent
from tests.sandbox import refused

pytestmark = pytest.mark.usefixtures("offline")

Capture = pytest.CaptureFixture[str]
Recording = Callable[..., None]
ROPE = "rope_zero_init"


def environment(
    versions: Mapping[str, str], complete: bool = True, origin: str = ""
) -> Environment:
    packages = {name: described(name, version, origin) for name, version in versions.items()}
    return Environment(packages, "here", complete, None)


def answer(name: str, installed: Environment, settings: Any = None) -> Checked:
    (bug,) = recorded([name], installed, settings)
    return bug


@pytest.mark.parametrize(
    ("name", "installed", "expected", "why"),
    [
        ("clip_max_for_min", {"deepspeed": "0.13.2"}, "affected", "was tested on"),
        ("clip_max_for_min", {"deepspeed": "0.13.3"}, "not affected", "was tested on"),
        ("clip_max_for_min", {"deepspeed": "0.15.2"}, "not affected", "0.14.5 and deepspeed"),
        ("clip_max_for_min", {}, "does not apply", "deepspeed is not installed"),
        ("clip_max_for_min", {"deepspeed": "99.0"}, "unknown", "the newest tested, is"),
        ("clip_max_for_min", {"deepspeed": "0.13.2+3d347276"}, "unknown", "a build with the label"),
        ("clip_max_for_min", {"deepspeed": "my own"}, "unknown", "is not a version"),
        (
            "trainer_gas_twice",
            {"transformers": "5.24.0.dev0", "accelerate": "1.13.0"},
            "unknown",
            "",
        ),
        ("trainer_gas_twice", {"transformers": "5.3.0"}, "does not apply", "accelerate is not in"),
        (
            "rope_zero_init_v5",
            {"transformers": "4.36.2", "deepspeed": "0.13.3"},
            "does not apply",
            "this is about transformers>=5",
        ),
        ("bf16_clip", {"deepspeed": "0.19.8"}, "not affected", "was tested on"),
        ("device_math", {"torch": "2.13.0"}, "does not apply", "every release of torch has it"),
    ],
)
def test_installed_releases_have_the_answer_of_recorded_runs(
    name: str, installed: dict[str, str], expected: str, why: str
) -> None:
    bug = answer(name, environment(installed))
    assert str(bug.status) == expected, bug.why
    assert why in bug.why


def test_a_file_may_leave_out_what_its_packages_need() -> None:
    bug = answer("trainer_gas_twice", environment({"transformers": "5.3.0"}, complete=False))
    assert bug.status is BugStatus.AFFECTED
    assert answer("trainer_gas_twice", environment({}, complete=False)).why == "no transformers"


def test_a_package_that_is_not_from_an_index_is_unknown() -> None:
    from_git = environment({"deepspeed": "0.13.2"}, origin="installed from git")
    bug = answer("clip_max_for_min", from_git)
    assert (bug.status, bug.why) == (BugStatus.UNKNOWN, "deepspeed 0.13.2: installed from git")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, BugStatus.NOT_TRIGGERED), (4, BugStatus.AFFECTED), (None, BugStatus.POSSIBLY)],
)
def test_settings_narrow_the_answer_but_never_to_not_affected(
    steps: int | None, expected: BugStatus
) -> None:
    stack = environment({"transformers": "5.3.0", "accelerate": "1.13.0"})
    settings = {"trainer": Setting(True), "gradient_accumulation_steps": Setting(steps)}
    assert answer("trainer_gas_twice", stack, settings).status is expected
    fixed = environment({"transformers": "5.5.4", "accelerate": "1.13.0"})
    assert answer("trainer_gas_twice", fixed, settings).status is BugStatus.NOT_AFFECTED


@pytest.mark.parametrize(
    "version",
    [
        "2.9.0a0+50eac811a6.nv25.09",
        "2.9.0rc1+cu128",
        "2.9.0.dev20250801+cu128",
        "2.9.0+git1234567",
        "2.7.0+rocm6.4.1.git1ded221d",
    ],
)
def test_a_build_of_torch_that_is_no_published_release_is_unknown(version: str) -> None:
    bug = answer("dcp_async_late", environment({"torch": version}))
    assert bug.status is BugStatus.UNKNOWN
    assert bug.why.startswith(f"torch {version}: a ")
    assert bug.why.endswith(f"with the label +{version.partition('+')[2]}")


def test_a_version_that_fits_in_no_message_is_none() -> None:
    bug = answer("dcp_async_late", environment({"torch": "2.9.0+" + "a" * 3_000}))
    assert bug.status is BugStatus.UNKNOWN
    assert bug.why == f"torch: '2.9.0+{'a' * 30} ...' is not a version"


def test_affected_bugs_come_first_and_of_these_the_most_damaging() -> None:
    bugs = recorded(catalog.sound(), environment({"deepspeed": "0.19.8"}))
    order = [
        (
            list(BugStatus).index(checked.status),
            HARMS.index(catalog.scenario(checked.scenario).harm),
        )
        for checked in bugs
    ]
    assert order == sorted(order)
    assert bugs[0].status is BugStatus.AFFECTED


def file(folder: Path, *lines: str) -> str:
    path = folder / "requirements.txt"
    path.write_text("\n".join(lines))
    return str(path)


def test_a_bug_is_printed_with_its_harm_its_releases_its_remedy_and_its_command(
    tmp_path: Path, capsys: Capture
) -> None:
    stack = file(tmp_path, "transformers==5.3.0", "accelerate==1.13.0")
    assert main(["check", "--long", "-r", stack]) == 1
    out, scenario = capsys.readouterr().out, catalog.scenario("trainer_gas_twice")
    assert f"ruins training (silent): {scenario.title} [trainer_gas_twice]" in out
    assert "transformers 5.2.0 to 5.5.3; 5.5.4 is not affected" in out
    assert f"only with: {scenario.trigger}" in out
    assert "use transformers 5.5.4\n" in out
    assert "run scenario=trainer_gas_twice variant=released pins.transformers=5.3.0" in out
    assert "about packages or releases that you do not have" in out.splitlines()[-1]


def test_the_first_lines_answer_and_what_needs_settings_has_a_line_each(
    tmp_path: Path, capsys: Capture
) -> None:
    stack = file(tmp_path, "deepspeed==0.19.8", "transformers==5.3.0", "accelerate==1.13.0")
    assert main(["check", "-r", stack]) == 1
    out = capsys.readouterr().out
    assert re.search(
        r"^0 bugs affect you\. \d+ more depend on settings that you have not named\.", out, re.M
    )
    assert re.search(r"^  fp16_overflow \(stops\): only with dynamic loss scaling", out, re.M)
    assert "remedy:" not in out
    assert main(["check", "-r", stack, "--long"]) == 1
    assert "remedy:" in capsys.readouterr().out
    (tmp_path / "args.json").write_text('{"gradient_accumulation_steps": 4}')
    main(["check", "-r", stack, "--training-args", str(tmp_path / "args.json")])
    out = capsys.readouterr().out
    assert re.search(
        r"^[1-9]\d* bugs? affects? you\. \d+ more .* that are not in your files\.", out, re.M
    )
    assert "[trainer_gas_twice]" in out


def test_a_lock_with_several_releases_has_a_status_that_they_share() -> None:
    packages = {"deepspeed": Installed("", "uv.lock has both", ("0.13.2", "0.13.3"))}
    bug = answer("clip_max_for_min", Environment(packages, "here", False))
    assert bug.status is BugStatus.POSSIBLY
    assert "0.13.2 was tested" in bug.why
    assert "0.13.3 was tested" in bug.why
    assert answer("fp16_overflow", Environment(packages, "here", False)).how


def test_the_json_has_every_bug_and_the_version_of_its_schema(
    tmp_path: Path, capsys: Capture
) -> None:
    assert main(["check", "--json", "-r", file(tmp_path, "deepspeed==0.13.3")]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["schema"] == 2
    assert content["environment"]["packages"]["deepspeed"]["version"] == "0.13.3"
    assert {bug["name"] for bug in content["bugs"]} == set(catalog.sound())
    (bug,) = [bug for bug in content["bugs"] if bug["name"] == "warmup_first_step"]
    assert bug["status"] == "affected"
    assert bug["periods"][0]["after"] == "0.15.3"


def test_annotations_of_github_are_one_line_each_and_escaped() -> None:
    bugs = recorded(["trainer_gas_twice", "bf16_clip"], environment({"deepspeed": "0.19.8"}))
    assert list(for_github(bugs, None)) == []
    stack = environment({"transformers": "5.3.0", "accelerate": "1.13.0"})
    (line,) = for_github(recorded(["trainer_gas_twice"], stack), "a,b:c%.txt")
    assert line.startswith("::error file=a%2Cb%3Ac%25.txt,title=trainer_gas_twice%3A affected::")


def printed_for_github(capsys: Capture, *words: str) -> list[str]:
    main(["check", *words, "--format", "github"])
    return capsys.readouterr().out.splitlines()


def test_annotations_begin_with_what_was_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    file(tmp_path, "# ours", "transformers==5.2.0", "accelerate>=1.13", "./vendored/-x y", "-e .")
    lines = printed_for_github(capsys, "-r", "requirements.txt")
    notices = [line for line in lines if ",title=check::" in line]
    assert lines[: len(notices)] == notices
    begin = "::notice file=requirements.txt,"
    title = "title=check::requirements.txt, line 4: it does not show which package is there"
    assert f"{begin}line=4,{title}" in notices
    assert any("line 5: its dependencies were not read" in line for line in notices)
    (bug,) = [line for line in lines if "title=trainer_gas_twice" in line]
    assert bug.startswith("::error file=requirements.txt,line=2,title=")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (".", "file=pyproject.toml,title="),
        ("pyproject.toml[train]", "file=more/base.txt,line=1,title="),
        ("more/base.txt", "file=more/base.txt,line=1,title="),
        ("more", "file=more/requirements.txt,line=1,title="),
        ("all.txt", "file=more/base.txt,line=1,title="),
    ],
)
def test_an_annotation_is_at_the_file_and_the_line_that_were_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str, expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("more").mkdir()
    Path("more/base.txt").write_text("transformers==5.2.0\n")
    Path("more/requirements.txt").write_text("transformers==5.2.0\n")
    Path("all.txt").write_text("\n-r more/base.txt\n")
    Path("pyproject.toml").write_text(
        '[project]\ndependencies = ["transformers==5.2.0"]\n'
        if name == "."
        else '[project]\nname = "mine"\ndynamic = ["optional-dependencies"]\n'
        '[tool.setuptools.dynamic]\noptional-dependencies.train.file = "more/base.txt"\n'
    )
    (bug,) = [
        line for line in printed_for_github(capsys, "-r", name) if "title=trainer_gas" in line
    ]
    assert bug.startswith(f"::error {expected}")


def test_the_summary_counts_every_answer() -> None:
    checked = [Checked("a", answer, "", {}) for answer in (BugStatus.AFFECTED, *BugStatus)]
    assert summary(checked).startswith("7 bugs: 2 affected, 1 possibly affected, 1 unknown, ")
    assert summary([]) == "0 bugs: none"


@pytest.mark.parametrize(
    ("line", "options", "code"),
    [
        ("deepspeed==0.13.2", [], 1),
        ("deepspeed==0.13.3", [], 0),
        ("deepspeed==99.0", [], 0),
        ("deepspeed==99.0", ["--strict"], 3),
        ("deepspeed==0.13.2", ["--deepspeed", "ds.json"], 0),
    ],
)
def test_the_exit_code_says_whether_a_bug_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, options: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text('{"gradient_clipping": 0}')
    words = ["check", "scenario=clip_max_for_min", "-r", file(tmp_path, line), *options]
    assert main(words) == code


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-r", "nowhere.txt"], "nowhere.txt"),
        (["--python", "nowhere/python"], "no interpreter nowhere/python"),
        (["--python", "p", "-r", "f"], "not allowed with argument"),
        (["pins.deepspeed=0.1"], "leave pins.deepspeed=0.1 out"),
        (["scenario=rope_zero"], "did you mean rope_zero_init?"),
        (["seed=1"], "seed=1 has an effect only with --run"),
        (["--unknown"], "--unknown has an effect only with --run"),
        (["--as-of", "2025-01-01"], "--as-of has an effect only with -r"),
        (["--as-of", "2025-01-01", "--python", "p"], "--as-of has an effect only with -r"),
        (["--deepspeed", "nowhere.json"], "cannot read nowhere.json"),
        (["--format", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, capsys: Capture) -> None:
    assert message in refused(capsys, ["check", *words])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n" * 300, "File name too long"),
        ("n" * 300 + "[train]", "File name too long"),
        ("n/" * 3000, "File name too long"),
        ("loop", "Too many levels of symbolic links"),
        ("a\0b", "null byte"),
        ("", "-r names no file"),
        ("requirements.txt[a]", "requirements.txt has no extras or groups: leave [a] out"),
        ("uv.lock[a,b]", "uv.lock has no extras or groups: leave [a,b] out"),
    ],
    ids=lambda text: text[:12],
)
def test_a_name_that_names_no_file_is_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    Path("uv.lock").write_text("version = 1\n")
    file(tmp_path, "transformers==5.2.0")
    error = refused(capsys, ["check", "-r", name])
    assert message in error
    assert len(error) < 300


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml", "uv.lock"])
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "which is no file: name it with -r"),
        (lambda path: path.symlink_to(path), "which cannot be read: Too many levels of symbolic"),
        (lambda path: path.symlink_to("gone"), "which cannot be read: No such file"),
    ],
)
def test_a_folder_with_what_is_no_file_is_refused_with_the_reason(
    tmp_path: Path, capsys: Capture, name: str, make: Callable[[Path], None], why: str
) -> None:
    make(tmp_path / name)
    error = refused(capsys, ["check", "-r", str(tmp_path)])
    assert f"; it has {name}, {why}" in error


def test_a_pipe_that_the_user_names_is_read(tmp_path: Path, capsys: Capture) -> None:
    """``-r <(pip freeze)``"""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("deepspeed==0.13.2\n",))
    writer.start()
    assert main(["check", "-r", str(pipe), "scenario=clip_max_for_min"]) == 1
    writer.join()


def test_an_environment_without_any_of_the_packages_is_a_mistake_and_not_an_all_clear(
    tmp_path: Path, capsys: Capture
) -> None:
    assert "requirements.txt has none of accelerate, datasets" in refused(
        capsys, ["check", "-r", file(tmp_path, "numpy==2.0")]
    )
    assert "has none of accelerate: name another" in refused(
        capsys, ["check", "-r", file(tmp_path, "numpy==2.0"), "scenario=sampler_shards"]
    )


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("./vendored/-x y", "line 1: it does not show which package is there"),
        ("-e .", "line 1: its dependencies were not read"),
        ("--no-index\nmine==1.0", "--no-index forbids to look up what packages need"),
        ("./-x y\n./-x z\n" * 10, "line 5: it does not show which package is there; 15 more lines"),
    ],
)
def test_what_was_not_looked_up_is_said_if_nothing_else_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture, line: str, note: str
) -> None:
    monkeypatch.chdir(tmp_path)
    file(tmp_path, line)
    error = refused(capsys, ["check", "-r", "requirements.txt"])
    assert note in error
    assert error.index(note) < error.index("requirements.txt has none of accelerate")


def test_the_answers_need_no_torch_no_hydra_and_no_process() -> None:
    code = (
        "import sys, os; from harness.__main__ import main; "
        "sys.addaudithook(lambda event, _: event == 'subprocess.Popen' and os._exit(9)); "
        "main(['check']); print(sorted({'torch', 'hydra', 'yaml'} & set(sys.modules)))"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert process.stdout.splitlines()[-1] == "[]", process.stderr


def run_status(name: str, installed: Environment, *words: str) -> Checked:
    """The status after a run."""
    (bug,) = live.statuses(
        recorded([name], installed), installed, ["lane=cpu", *words], Progress(terminal())
    )
    return bug


def test_a_run_without_a_status_leaves_the_recorded_one(
    upstream: Upstream, record: Recording
) -> None:
    record(v4_36_2=YES, v4_37_2=NO)
    upstream.error = Inconclusive("no network")
    bug = run_status(
        ROPE, environment({"transformers": "4.36.2", "deepspeed": "0.13.3"}, complete=False)
    )
    assert (bug.status, bug.how) == (BugStatus.AFFECTED, "tested")
    assert bug.why.endswith("the run gave no certain status: no network")


def test_only_unknown_bugs_are_run_if_that_is_wanted(
    upstream: Upstream, record: Recording, tmp_path: Path, capsys: Capture
) -> None:
    record(v4_36_2=YES, v4_37_2=NO)
    words = ["check", f"scenario={ROPE}", "lane=cpu", "--run", "--unknown", "-r"]
    assert main([*words, file(tmp_path, "transformers==4.36.2", "deepspeed==0.13.3")]) == 1
    assert upstream.tested == []
    assert main([*words, file(tmp_path, "transformers==4.37.0", "deepspeed==0.13.3")]) == 1
    assert upstream.tested == ["4.37.0"]
    assert "4.37.0" in capsys.readouterr().out


def test_only_packages_in_the_environment_itself_count_as_installed(tmp_path: Path) -> None:
    interpreter = of_this_interpreter(["packaging", "pytest", "not-there"]).interpreter
    assert interpreter is not None
    assert overlay.installed(interpreter, ["packaging"]).site == Path(interpreter.site)
    with pytest.raises(Unsupported, match="not-there is not installed"):
        overlay.installed(interpreter, ["packaging", "not-there"])
    elsewhere = {"packaging": Distribution("1.0", str(tmp_path))}
    with pytest.raises(Unsupported, match="packaging is installed in"):
        overlay.installed(Interpreter("python", "3.11", interpreter.site, elsewhere), ["packaging"])


def test_an_interpreter_without_torch_cannot_run_anything() -> None:
    packages = {"deepspeed": Installed("0.13.2")}
    without = Environment(packages, "/p", True, Interpreter("/p", "3.11.7", "/site", {}))
    with pytest.raises(Unsupported, match="/p has no torch, which --run needs"):
        run_status("clip_max_for_min", without)


@pytest.mark.launch
def test_installed_packages_are_run_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay of accelerate stands for the environment that has it installed."""
    monkeypatch.delenv("UV_OFFLINE")  # the overlay may have to be built
    with lent("sampler_shards", "buggy") as overlays:
        site = str(overlays["buggy"].site)
        stack = of_this_interpreter([])
        assert stack.interpreter is not None
        packages = {**stack.interpreter.packages, "accelerate": Distribution("0.29.3", site)}
        interpreter = replace(stack.interpreter, site=site, packages=packages)
        monkeypatch.setattr(overlay, "borrowed", None)  # nothing but the environment is to run
        installed = {**stack.packages, "accelerate": Installed("0.29.3")}
        bug = run_status("sampler_shards", Environment(installed, "here", True, interpreter))
    assert (bug.status, bug.how) == (BugStatus.AFFECTED, "ran"), bug.why


@pytest.mark.parametrize("stack", stacks.STACKS)
def test_the_recorded_answers_of_six_stacks_are_those_of_runs(stack: str) -> None:
    """Records may not know an answer that a run gives, but they never give another one."""
    names = list(catalog.sound())
    installed = of_files([stacks.requirements(stack)], catalog.upstreams())
    recorded_answers = {each.scenario: str(each.status) for each in recorded(names, installed)}
    run_answers = stacks.ran(stack)
    assert len(run_answers) >= 9
    certain_answers = {
        name: recorded_answers[name] for name in run_answers if recorded_answers[name] != "unknown"
    }
    assert certain_answers.items() <= run_answers.items()
    assert len(certain_answers) >= 0.8 * len(run_answers)


# Several releases, other names, and packages without a release


def lock(folder: Path, *versions: str) -> str:
    """A poetry.lock with several releases of transformers, as for different groups."""
    packages = "".join(
        f'[[package]]\nname = "transformers"\nversion = "{version}"\n' for version in versions
    )
    packages += '[[package]]\nname = "accelerate"\nversion = "1.13.0"\n'
    metadata = '[metadata]\nlock-version = "2.1"\npython-versions = ">=3.10"\n'
    (folder / "poetry.lock").write_text(packages + metadata)
    return str(folder / "poetry.lock")


@pytest.mark.parametrize(
    ("versions", "status", "release"),
    [
        (("5.2.0", "5.6.0"), "possibly affected", "5.2.0"),
        (("5.6.0", "5.2.0"), "possibly affected", "5.2.0"),
        (("5.2.0", "5.3.0"), "affected", "5.2.0"),
        (("5.5.4", "5.6.0"), "not affected", "5.5.4"),
        (("4.36.2", "4.57.0"), "not affected", "4.36.2"),
    ],
)
def test_of_several_releases_each_that_may_be_installed_counts(
    tmp_path: Path, capsys: Capture, versions: tuple[str, ...], status: str, release: str
) -> None:
    bug = {
        checked.scenario: checked
        for checked in recorded(
            ["trainer_gas_twice"],
            Environment(
                {"transformers": Installed("", "a lock has several", versions)}, "a lock", False
            ),
        )
    }["trainer_gas_twice"]
    assert (str(bug.status), bug.releases["transformers"]) == (status, release), bug.why
    code = main(["check", "-r", lock(tmp_path, *versions), "--json", "scenario=trainer_gas_twice"])
    content = json.loads(capsys.readouterr().out)
    assert content["bugs"][0]["name"] == "trainer_gas_twice"
    assert code == (1 if "affected" in status and "not" not in status else 0)


@pytest.mark.parametrize(
    ("versions", "status"),
    [(("5.0.0", "5.2.0"), "possibly affected"), (("4.36.2", "5.0.0"), "does not apply")],
)
def test_a_release_that_a_bug_is_not_about_does_not_hide_another(
    versions: tuple[str, ...], status: str
) -> None:
    several = {"transformers": Installed("", "several", versions)}
    bug = answer("tp_activation_partial", Environment(several, "a lock", False))
    assert str(bug.status) == status, bug.why


@pytest.mark.parametrize("form", [["--json"], ["--long"], ["--format", "github"], []], ids=str)
@pytest.mark.parametrize("package", ["torch", "transformers", "deepspeed", "lightning"])
def test_a_package_from_git_is_unknown_in_every_format(
    tmp_path: Path, capsys: Capture, form: list[str], package: str
) -> None:
    lines = file(tmp_path, f"{package} @ git+https://host/{package}", "accelerate==1.13.0")
    assert main(["check", "-r", lines, *form]) in (0, 1)
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "installed from git" in printed.out


@pytest.mark.parametrize(
    ("installed", "status"),
    [
        ({"lightning": "2.6.0"}, "affected"),
        ({"lightning": "2.6.0", "pytorch-lightning": "2.6.0"}, "affected"),
        ({"lightning": "2.6.0", "pytorch-lightning": "2.6.1"}, "possibly affected"),
        ({"pytorch-lightning": "2.6.1"}, "not affected"),
    ],
)
def test_lightning_is_pytorch_lightning(installed: dict[str, str], status: str) -> None:
    packages = merged({name: described(name, version) for name, version in installed.items()})
    bug = answer("pl_sampler_epoch", Environment(packages, "here", False))
    assert str(bug.status) == status, bug.why


def test_what_lightning_needs_gives_way_to_it() -> None:
    needed = replace(described("pytorch-lightning", "2.6.6"), newest_of=DEPENDENCY)
    packages = merged({"lightning": described("lightning", "2.6.0"), "pytorch-lightning": needed})
    assert packages["pytorch-lightning"].version == "2.6.0"


@pytest.mark.parametrize("name", [n for n, other in PUBLISHED.items() if not other.same])
def test_a_fork_under_another_name_is_unknown(name: str) -> None:
    package = PUBLISHED[name].package
    entry = merged({name: described(name, "1.0")})[package]
    assert f"{name} 1.0 is installed in its place" in entry.origin
    both = merged({name: described(name, "1.0"), package: described(package, "2.0")})[package]
    assert not both.version
    assert name in both.origin


@pytest.mark.parametrize("format_", ["text", "github", "json"])
def test_a_line_break_of_a_user_begins_no_line(
    tmp_path: Path, capsys: Capture, format_: str
) -> None:
    """GitHub takes a line that begins with ``::`` as a command."""
    folder = tmp_path / "a\n::error::b"
    folder.mkdir()
    lines = folder / "c\n::error::d.txt"
    lines.write_text("transformers==5.2.0\n./e\\n::error::f\n")
    assert main(["check", "-r", str(lines), "--format", format_]) == 1
    project = folder / "pyproject.toml"
    project.write_text('[project]\ndependencies = ["up\\n::error::x", "transformers"]\n')
    assert main(["check", "-r", str(project), "--format", format_]) == 2
    printed = capsys.readouterr()
    assert not re.search(r"^::error::[bdfx]", printed.out + printed.err, flags=re.MULTILINE)


@pytest.mark.parametrize("day", ["2025-13-45", "20250101", "tomorrow", "9999-01-01", "", "-1"])
def test_as_of_needs_a_day(tmp_path: Path, capsys: Capture, day: str) -> None:
    refused(capsys, ["check", "-r", file(tmp_path, "transformers"), f"--as-of={day}"])
