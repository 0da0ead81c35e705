"""Results for Python have what the commands' JSON has."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness import console_script as distributed_bugs
from harness.python import commands
from harness.python.results import ProbeResult, of_json
from harness.training.probe import probe_report
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken
from harness.training.probe.layouts import RANKS, Layout
from harness.training.probe.signatures import KnownBug

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "loops/ddp.py"
FORBID = "import sys; sys.modules.update(transformers=None, lightning=None, torch=None); "
"""Makes imports of these fail, as where they are not installed."""


def test_result_of_check_has_the_types_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    result = distributed_bugs.check({"transformers": "5.2.0", "accelerate": "1.13.0"})
    assert result.exit_code == 1
    bug = next(bug for bug in result.affected if bug.name == "trainer_gas_twice")
    assert bug.remedy == "use transformers 5.5.4"
    assert bug.periods[0].after == "5.5.4"
    assert "1.13.0" in str(result).splitlines()[0]
    assert repr(result) == f"<CheckResult of the mapping: {len(result.affected)} bugs>"


def test_result_of_probe_has_the_types_of_python() -> None:
    broken = Broken("gradient", "0.5 times <the reference's>", float("nan"), "", ("w",), (0, 1))
    compared = Compared(Layout("2 ranks", RANKS, 2), broken=[broken], step=1)
    answers = Answers("4 steps", [compared], script="train.py")
    content = probe_report.as_json(answers, 1.0, [KnownBug("bug", "title", "why")])
    result = of_json(ProbeResult, json.loads(json.dumps(content)))
    assert not result.right
    assert (result.layouts[0].broken[0].ranks, result.known[0].name) == ((0, 1), "bug")
    assert repr(result) == f"<ProbeResult: {content['headline']}>"
    assert str(result).splitlines()[0] == content["headline"]
    assert "&lt;the reference" in result._repr_html_()


PATHS = "write the path of a file or a folder, a dict {'transformers': '5.2.0'}, or a list"


@pytest.mark.parametrize(
    ("packages", "arguments", "message"),
    [
        ("transformers==5.2.0", {}, "no file transformers==5.2.0: write packages as a list"),
        ([], {}, "packages_or_file is empty"),
        ([3], {}, "packages_or_file: 3 is no text: write '3'"),
        (5, {}, f"packages_or_file is 5: {PATHS}"),
        (b"a", {}, f"packages_or_file is b'a': {PATHS}"),
        ("a\0b", {}, "has a null byte"),
        ({"torch": 2.5}, {}, "the version of torch is 2.5: write a text, such as '2.5' or '>=2.5'"),
        ({"torch": ""}, {}, "the version of torch is '': write a text"),
        ({1: "2"}, {}, "packages_or_file: 1 is no text"),
        (None, {"as_of": 2025}, "as_of: 2025 is no text: write '2025'"),
        (None, {"models": 5}, "models is 5: write a list"),
        (None, {"models": "gpt_oss"}, "write a list, ['gpt_oss']"),
    ],
)
def test_mistake_in_the_arguments_is_one_line(packages: Any, arguments: Any, message: str) -> None:
    with pytest.raises(distributed_bugs.Error, match=re.escape(message)) as raised:
        distributed_bugs.check(packages, **arguments)
    assert raised.value.exit_code == 2
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("packages", "arguments", "message"),
    [
        ({"tranformers": "5.2.0"}, {}, "the mapping has none of the "),
        ({"tranformers": "5.2.0"}, {}, "with python, or its requirements with packages_or_file"),
        (["tranformers==5.2.0"], {}, "the list has none of the "),
        ({"transformers": "newest"}, {}, "the mapping, line 1: "),
        (None, {"as_of": "2025-01-01"}, "as_of has an effect only with packages_or_file"),
        (
            ["torch==2.5.0"],
            {"python": "p"},
            "argument python: not allowed with argument packages_or_file",
        ),
        ("Dockerfile", {}, "'docker run IMAGE pip freeze | distributed-bugs check -r -'"),
    ],
)
def test_a_message_names_the_arguments_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: Any, arguments: Any, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_OFFLINE", "1")
    with pytest.raises(distributed_bugs.Error, match=re.escape(message)) as raised:
        distributed_bugs.check(packages, **arguments)
    assert "standard input" not in str(raised.value)


@pytest.mark.slow
def test_a_dict_is_all_that_is_installed_and_a_list_is_what_is_required(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """The first example of the page named one package, and left out bugs that need two."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    names = ["trainer_gas_twice"]
    installed = distributed_bugs.check({"transformers": "5.2.0"}, scenarios=names)
    assert not installed.affected
    assert "accelerate is not installed" in installed.bugs[0].why
    assert installed.environment.complete
    note = "the mapping counts as all that is installed: what it does not name is not there."
    assert note in installed.text
    day = datetime.date(2026, 11, 1)
    required = distributed_bugs.check(["transformers==5.2.0"], scenarios=names, as_of=day)
    assert [bug.name for bug in required.affected] == names
    assert not required.environment.complete
    assert required.text.startswith("the list: transformers 5.2.0\n")
    assert "not complete: files name what a project needs" in required.text
    assert repr(installed) == "<CheckResult of the mapping: 0 bugs>"


def test_a_notebook_forces_no_colours_into_results(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    """IPython's kernel sets FORCE_COLOR: the report had escapes, and each frame was a warning."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    result = distributed_bugs.check({"transformers": "5.2.0"}, scenarios=["trainer_gas_twice"])
    assert "\x1b" not in result.text
    with pytest.raises(distributed_bugs.Error) as raised:
        distributed_bugs.probe("no_such_script.py", "{rows}")
    assert str(raised.value) == "there is no script no_such_script.py"
    assert [str(warning.message) for warning in recwarn] == []


@pytest.mark.parametrize(
    ("lines", "message", "log"),
    [
        (["distributed-bugs: no answer", "    | err 1", "    | err 2"], "no answer", 2),
        (["a warning", "distributed-bugs: a note", "distributed-bugs: no answer"], "no answer", 0),
        (["Traceback:", "KeyError"], "exit code 3", 2),
    ],
)
def test_lines_of_a_script_that_failed_are_beside_the_message(
    lines: list[str], message: str, log: int
) -> None:
    error = commands._error(lines, 3)
    assert (str(error), len(error.log), error.exit_code) == (message, log, 3)


def test_everything_that_the_package_names_is_there_without_other_packages() -> None:
    code = "from harness import console_script as d; [getattr(d, name) for name in d.__all__]"
    assert {"Bug", "Layout", "Place"} < set(distributed_bugs.__all__)
    subprocess.run([sys.executable, "-c", FORBID + code], cwd=ROOT, check=True)


def test_a_command_line_in_one_text_is_refused_with_its_words() -> None:
    with pytest.raises(distributed_bugs.Error) as raised:
        distributed_bugs.probe("train.py --batch-size {rows}")
    message = "write each word by itself: probe('train.py', '--batch-size', '{rows}')"
    assert (str(raised.value), raised.value.exit_code) == (message, 2)
    with pytest.raises(distributed_bugs.Error, match=r"names no file: name one, or \. for this"):
        distributed_bugs.check("")


@pytest.mark.parametrize("words", [("--json", "x"), ("--json=x",), (3,)])
def test_words_that_a_result_replaces_are_refused(words: Any) -> None:
    with pytest.raises(distributed_bugs.Error):
        distributed_bugs.probe(*words, SCRIPT)


@pytest.mark.launch
@pytest.mark.slow
def test_probe_runs_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = SCRIPT.read_text().replace("import argparse", "import argparse\nimport my_module", 1)
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "my_module.py").write_text("")
    words = ["--layouts", "accumulation", "train.py", "--batch-size", "{rows}", "--accum", "{k}"]
    result = distributed_bugs.probe(*words)
    assert result.right, str(result)
    assert result.loaded == ("my_module.py", "train.py")
    assert not distributed_bugs.probe(*words, "--bug", "divided by k twice").right
