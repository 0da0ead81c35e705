"""SARIF, Markdown and the lines of files that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.check.check_report import INCOMPLETE, Report, as_json
from harness.check.environment import Environment
from harness.check.places import line_of

pytestmark = pytest.mark.usefixtures("offline", "working_folder")

Capture = pytest.CaptureFixture[str]


def sarif_run(capsys: Capture, *words: str) -> Any:
    main(["check", *words, "--format", "sarif"])
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    return run


def test_sarif_has_a_rule_and_a_result_at_the_line_of_each_bug(capsys: Capture) -> None:
    Path("our requirements.txt").write_text("\ndeepspeed==0.13.2\n./x y\n")
    run = sarif_run(capsys, "-r", "our requirements.txt")
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [result["ruleId"] for result in run["results"]] == rules
    (result,) = [result for result in run["results"] if result["ruleId"] == "clip_max_for_min"]
    assert (result["level"], result["suppressions"]) == ("warning", [])
    assert result["properties"]["releases"]["deepspeed"] == "0.13.2"
    (location,) = (entry["physicalLocation"] for entry in result["locations"])
    assert location["artifactLocation"]["uri"] == "our%20requirements.txt"
    assert location["region"] == {"startLine": 2}
    (invocation,) = run["invocations"]
    assert any("line 3: " in n["message"]["text"] for n in invocation["toolExecutionNotifications"])


def test_a_bug_that_depends_on_settings_is_a_warning(capsys: Capture) -> None:
    Path("requirements.txt").write_text("deepspeed==0.13.2\ntransformers==5.2.0\n")
    words = ["-r", "requirements.txt", "scenario=clip_max_for_min"]
    (result,) = sarif_run(capsys, *words)["results"]
    assert (result["level"], result["properties"]["status"]) == ("warning", "affected")
    main(["check", *words, "--format", "github"])
    assert "\n::warning file=requirements.txt,line=1," in f"\n{capsys.readouterr().out}"
    Path("ds.json").write_text('{"gradient_clipping": 1.0}')
    (result,) = sarif_run(capsys, *words, "--deepspeed", "ds.json")["results"]
    assert result["level"] == "error"


def test_an_accepted_bug_is_suppressed_with_its_reason(capsys: Capture) -> None:
    Path("requirements.txt").write_text("deepspeed==0.13.2\n")
    text = '[[accepted]]\nbug = "clip_max_for_min"\nreason = "no clipping"\n'
    Path("distributed-bugs.toml").write_text(text)
    run = sarif_run(capsys, "-r", "requirements.txt", "scenario=clip_max_for_min")
    (result,) = run["results"]
    assert result["level"] == "note"
    (suppression,) = result["suppressions"]
    assert suppression["justification"] == "no clipping"


def test_files_are_written_and_the_text_is_printed(capsys: Capture) -> None:
    Path("requirements.txt").write_text("deepspeed==0.13.2\n")
    words = ["--format", "sarif:a.sarif", "--format", "markdown:a.md", "--format", "json:a.json"]
    assert main(["check", "-r", "requirements.txt", *words]) == 1
    assert capsys.readouterr().out.startswith("requirements.txt: deepspeed 0.13.2")
    names = {bug["name"] for bug in json.loads(Path("a.json").read_text())["bugs"]}
    (run,) = json.loads(Path("a.sarif").read_text())["runs"]
    assert {result["ruleId"] for result in run["results"]} <= names
    text = Path("a.md").read_text()
    assert text.startswith("## distributed-bugs: ")
    assert "| clip_max_for_min | depends on settings | ruins training | " in text
    assert "requirements.txt, line 1 |" in text


UV = """\
[[package]]
name = "accelerate"
version = "1.13.0"
source = { registry = "ours" }
dependencies = [
    { name = "torch" },
]

[[package]]
name = "torch"
version = "2.9.0"
source = { registry = "ours" }
"""
CONDA = """\
[
  {
    "name": "pytorch-lightning",
    "version": "2.6.0"
  }
]
"""
PIPFILE = '{"default": {\n "torch": {"version": "==2.9.0"}}}\n'


@pytest.mark.parametrize(
    ("text", "package", "number"),
    [
        (UV, "torch", 10),
        (UV, "accelerate", 2),
        (UV, "transformers", 0),
        (CONDA, "Pytorch_Lightning", 3),
        (CONDA, "lightning", 0),
        (PIPFILE, "torch", 2),
        ("dependencies:\n- pytorch=2.1\n- conda-forge::transformers >=5\n", "transformers", 3),
        ('[project]\n# torch\ndependencies = ["a", "torch>=2"]\n', "torch", 3),
        ('[tool.poetry.dependencies]\ntorch-x = "1"\ntorch = "^2"\n', "torch", 3),
        ("install_requires =\n    open_clip.torch\n", "open-clip-torch", 2),
        ("- {name: torch-x}\n  dependencies: {torch: 1}\n- {name: torch, version: 1}", "torch", 3),
    ],
)
def test_the_line_of_a_package(text: str, package: str, number: int) -> None:
    assert line_of([package], text.splitlines()) == number


POETRY = """\
[tool.poetry.dev-dependencies]
torch = "2.8"
[tool.poetry.extras]
all = ["timm"]
[tool.poetry.dependencies]
timm = {version = "1", optional = true}
torch = "2.9"
[tool.poetry.group.test.dependencies]
torch = "2.7"
"""
PROJECT = """\
[project]
keywords = [
  "torch",
]
dependencies = ["torch"]
urls = [
  "torch"
]
optional-dependencies.train = ["torch"]
[dependency-groups]
train = [
  "torch",
]
"""
SETUP_CFG = """\
[metadata]
keywords =
    torch
[options]
install_requires =
    torch
[options.extras_require]
train =
    torch
"""
PIPFILE_TABLES = '[dev-packages]\ntorch = "*"\n[packages]\ntorch = "*"\n'
EXPORT = """\
name: pytorch
channels: [pytorch]
dependencies:
- conda-forge/linux-64::pytorch-gpu=2.4
"""


@pytest.mark.parametrize(
    ("text", "position", "number"),
    [
        (POETRY, "tool.poetry.dependencies", 7),
        (POETRY, "tool.poetry.group.test", 9),
        (POETRY, "tool.poetry.group.dev", 2),
        (PROJECT, "project.dependencies", 5),
        (PROJECT, "project.optional-dependencies.train", 9),
        (PROJECT, "dependency-groups.train", 12),
        (PROJECT, "project.'dependencies'", 3),
        (SETUP_CFG, "install_requires", 6),
        (SETUP_CFG, "extras_require.train", 9),
        (PIPFILE_TABLES, "packages", 4),
        (EXPORT, "dependencies", 4),
    ],
)
def test_the_line_of_a_package_is_in_the_table_that_its_place_names(
    text: str, position: str, number: int
) -> None:
    names = ["torch", "pytorch", "pytorch-gpu"]
    assert line_of(names, text.splitlines(), position) == number


def test_an_optional_package_of_poetry_is_at_its_release() -> None:
    assert line_of(["timm"], POETRY.splitlines(), "tool.poetry.extras.all") == 6


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("environment.yml", "channels: [pytorch]\ndependencies:\n- pytorch=2.4\n", 3),
        (
            "conda-lock.yml",
            "version: 1\nmetadata: {}\npackage:\n"
            "- {name: pytorch, version: 2.4.0, manager: conda, platform: linux-64}\n",
            4,
        ),
        ("pyproject.toml", "[project]\nkeywords = [\n'torch'\n]\ndependencies=['torch==2.4']", 5),
    ],
)
def test_a_package_is_found_by_the_name_that_the_file_has(
    capsys: Capture, name: str, text: str, line: int
) -> None:
    Path(name).write_text(text)
    (location,) = sarif_run(capsys, "-r", name, "scenario=dcp_async_late")["results"][0][
        "locations"
    ]
    assert location["physicalLocation"]["region"] == {"startLine": line}


def test_a_bug_of_a_lock_file_is_at_the_entry_of_its_package(capsys: Capture) -> None:
    entry = '[[package]]\nname = "deepspeed"\nversion = "0.13.2"\nsource = { registry = "ours" }\n'
    Path("uv.lock").write_text(f"version = 1\n{UV}\n{entry}")
    run = sarif_run(capsys, "-r", ".", "scenario=clip_max_for_min")
    (location,) = (entry["physicalLocation"] for entry in run["results"][0]["locations"])
    assert location == {"artifactLocation": {"uri": "uv.lock"}, "region": {"startLine": 16}}


ANSWER = "0 bugs affect you. 0 more depend on settings that you have not named. 0 are unknown."


@pytest.mark.parametrize("complete", [True, False])
def test_json_and_text_say_why_a_list_of_packages_is_not_complete(complete: bool) -> None:
    """The answer about s1's requirements had ``"complete": false`` and no note."""
    report = Report(Environment({}, "a file", complete, notes=("read",)), [])
    answer = json.loads(as_json(report))
    notes = ["read", *([] if complete else [INCOMPLETE])]
    assert answer["environment"]["notes"] == notes
    assert answer["text"].splitlines()[1:4] == [*(f"  {note}" for note in notes), "", ANSWER][:3]
