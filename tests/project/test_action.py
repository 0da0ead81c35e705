"""The steps of action.yml, run as GitHub runs them: in bash, with its variables and files."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.system.documents import toml_of
from harness.system.files import ROOT
from tests.index import Handler, served
from tests.venvs import environment

__all__ = ["served"]

ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
TOOL = """#!/bin/sh
exec {python} -P -c "import sys; sys.path.insert(0, '{root}'); sys.argv[0] = 'distributed-bugs'; \
import runpy; runpy.run_module('harness', run_name='__main__')" "$@"
"""
"""The command of the installed tool: it runs this checkout."""


@dataclass
class Job:
    """A job of GitHub on a repository of a user."""

    folder: Path
    inputs: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    summary: str = ""

    @property
    def workspace(self) -> Path:
        return self.folder / "repository"

    def value(self, expression: str) -> str:
        """The value of an expression, of the few kinds that the action has."""
        if choice := re.fullmatch(r"(inputs\.\S+) && '(.*)' \|\| '(.*)'", expression):
            return choice[2] if self.value(choice[1]) else choice[3]
        kind, _, name = expression.partition(".")
        if kind == "inputs":
            return self.inputs.get(name, str(ACTION["inputs"][name].get("default", "")))
        step, _, name = name.partition(".outputs.")
        assert kind == "steps", expression
        return self.outputs[step][name]

    def run(self, name: str) -> tuple[int, str]:
        """The exit code of a step and what it prints; its outputs and summary are kept."""
        (step,) = (step for step in STEPS if step.get("id") == name)
        files = {key: self.folder / key for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        for file in files.values():
            file.write_text("")
        script = self.folder / "script.sh"
        script.write_text(step["run"])
        environment = {
            **os.environ,
            **{key: str(file) for key, file in files.items()},
            **{
                key: EXPRESSION.sub(lambda match: self.value(match[1]), value)
                for key, value in step.get("env", {}).items()
            },
            "GITHUB_ACTION_PATH": str(ROOT),
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_TEMP": str(self.folder),
            "RUNNER_OS": "Linux",
            "RUNNER_ARCH": "X64",
        }
        process = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        lines = files["GITHUB_OUTPUT"].read_text().splitlines()
        self.outputs[name] = dict(line.split("=", 1) for line in lines)
        self.summary = files["GITHUB_STEP_SUMMARY"].read_text()
        return process.returncode, process.stdout


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job before the action's first step."""
    job = Job(tmp_path, outputs={"python": {"python-path": sys.executable}})
    job.workspace.mkdir()
    return job


@pytest.fixture
def ready(job: Job, served: type[Handler]) -> Job:
    """A job after its tool was installed; the index has no package."""
    program = job.folder / "of the action" / "tool" / "bin" / "distributed-bugs"
    program.parent.mkdir(parents=True)
    program.write_text(TOOL.format(python=shlex.quote(sys.executable), root=ROOT))
    program.chmod(0o755)
    job.outputs["cache"] = {"folder": str(job.folder / "cache")}
    job.outputs["tool"] = {"folder": str(job.folder / "of the action")}
    return job


def test_a_bug_is_annotated_at_its_line_and_fails_the_job(ready: Job) -> None:
    (ready.workspace / "requirements.txt").write_text("# ours\ndeepspeed==0.13.2\n")
    code, printed = ready.run("check")
    assert code == 1
    title = "title=clip_max_for_min%3A depends on settings::"
    assert f"::warning file=requirements.txt,line=2,{title}" in printed
    assert ready.summary.startswith("## distributed-bugs: ")
    assert "| clip_max_for_min | depends on settings |" in ready.summary
    assert ready.outputs["check"]["exit-code"] == "1"
    (run,) = json.loads(Path(ready.outputs["check"]["sarif"]).read_text())["runs"]
    assert "clip_max_for_min" in {result["ruleId"] for result in run["results"]}


def test_a_good_stack_passes_and_a_job_may_go_on_in_spite_of_a_bug(ready: Job) -> None:
    file = ready.workspace / "our stack.txt"
    ready.inputs = {"files": "our stack.txt\n", "options": "scenario=clip_max_for_min\n--strict"}
    file.write_text("deepspeed==0.13.3\n")
    code, printed = ready.run("check")
    assert (code, ready.outputs["check"]["exit-code"], "::error" in printed) == (0, "0", False)
    file.write_text("deepspeed==0.13.2\n")
    ready.inputs["fail"] = "false"
    code, printed = ready.run("check")
    assert (code, ready.outputs["check"]["exit-code"], "::warning" in printed) == (0, "1", True)


@pytest.mark.parametrize("files", ["", " \n"])
def test_without_files_nothing_is_checked(ready: Job, files: str) -> None:
    """Not the packages of the action itself."""
    ready.inputs["files"] = files
    assert ready.run("check") == (0, "")
    assert ready.outputs["check"] == {}


def test_blanks_around_the_name_of_a_file_are_no_part_of_it(ready: Job) -> None:
    ready.inputs |= {"files": "  absent.txt \r\n", "fail": "false"}
    code, printed = ready.run("check")
    assert code == 2
    assert "absent.txt" in printed
    assert " absent.txt \r" not in printed


def test_a_mistake_in_the_inputs_fails_the_job_always(ready: Job) -> None:
    ready.inputs = {"files": "nowhere.txt", "fail": "false"}
    code, printed = ready.run("check")
    assert (code, printed) == (2, "distributed-bugs: no file nowhere.txt\n")
    for step, name in (("check", "options"), ("probe", "probe"), ("run", "run")):
        ready.inputs = {name: "'--strict", "fail": "false"}
        code, printed = ready.run(step)
        why = f"the input {name} is not words of a shell: a quote has no end"
        assert (code, printed) == (2, f"::error title=distributed-bugs::{why}\n")


HOSTILE = (
    "$(touch mark)`touch mark`.txt",
    "a;touch mark;.txt",
    "--run",
    "a%0A::error::b, <img src=x>.txt",
    "'\" *$HOME.txt",
)


def test_hostile_names_are_only_names(ready: Job) -> None:
    for name in HOSTILE:
        (ready.workspace / name).write_text("deepspeed==0.13.2\n./x::error::$(touch mark)\n")
    ready.inputs = {"files": "\n".join(HOSTILE)}
    code, printed = ready.run("check")
    assert code == 1, printed
    assert {path.name for path in ready.workspace.iterdir()} == {*HOSTILE}
    lines = printed.splitlines()
    is_meant = re.compile(
        r"::(error|warning|notice) (file|title)=|"
        r"distributed-bugs: waiting for the package index to list the releases of deepspeed$"
    ).match
    assert [line for line in lines if not is_meant(line)] == []
    for name in HOSTILE:
        location = name.replace("%", "%25").replace(":", "%3A").replace(",", "%2C")
        assert f"::notice file={location},line=2,title=check::" in printed
    title = "title=clip_max_for_min%3A depends on settings::"
    assert f"::warning file={HOSTILE[0]},line=1,{title}" in printed
    assert "<" not in re.sub(r"</?(details|summary|br)>|\\<", "", ready.summary)


def test_hostile_options_are_words_of_check(ready: Job) -> None:
    (ready.workspace / "requirements.txt").write_text("deepspeed==0.13.2\n")
    ready.inputs = {"options": "$(touch${IFS}mark) ;touch mark `touch mark`"}
    code, printed = ready.run("check")
    assert code == 2
    assert [path.name for path in ready.workspace.iterdir()] == ["requirements.txt"], printed


def test_no_expression_is_part_of_a_script_and_every_action_has_a_tag() -> None:
    for step in STEPS:
        assert "${{" not in step.get("run", "")
        assert re.search(r"@v\d+$", step.get("uses", "@v1"))
    outputs = {output["value"] for output in ACTION["outputs"].values()}
    names = {step.get("id") for step in STEPS}
    assert {EXPRESSION.sub(lambda match: match[1].split(".")[1], text) for text in outputs} <= names


def test_the_page_names_the_inputs_and_the_tag_of_the_next_release() -> None:
    page = (ROOT / "docs" / "check_ci.md").read_text()
    version = toml_of((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"uses: distributed-bugs/distributed-bugs@v{version}" in page
    for name in (*ACTION["inputs"], *ACTION["outputs"]):
        assert f"| `{name}` |" in page, name


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "scenario=torch lane=gpu"])
def test_the_steps_install_this_checkout_and_import_no_module_of_the_job(
    job: Job, words: str
) -> None:
    for module in ("venv.py", "pip.py", "json.py", "harness.py"):
        (job.workspace / module).write_text("raise SystemExit('of the repository')\n")
    (job.workspace / "requirements.txt").write_text("deepspeed==0.13.2\n")
    job.inputs = {"run": words, "torch": "torch>=2.4,<2.12"}
    for step in ("cache", "tool"):
        code, printed = job.run(step)
        assert code == 0, printed
    of_run = subprocess.run(
        [Path(job.outputs["tool"]["folder"], "tool/bin/python"), "-I", "-c", "import torch, hydra"],
        check=False,
    )
    assert (of_run.returncode == 0) == bool(words)
    assert re.fullmatch(r"distributed-bugs-Linux-X64-[0-9a-f]{16}-", job.outputs["cache"]["key"])
    code, printed = job.run("check")
    assert code == 1, printed
    assert "title=clip_max_for_min%3A depends on settings" in printed


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(("words", "expected"), [("", 0), ('--bug "divided by k twice"', 1)])
def test_the_job_probes_a_script(ready: Job, words: str, expected: int) -> None:
    script = ready.workspace / "our loop.py"
    lines = (ROOT / "loops" / "ddp.py").read_text()
    script.write_text(f"print('::error::of the script')\n{lines}")
    ready.inputs = {
        "probe": f"'our loop.py' --batch-size {{rows}} --accum {{k}} {words}",
        "python": str(environment(ready.folder / "venv", "torch", "numpy")),
    }
    code, printed = ready.run("probe")
    assert (code, ready.outputs["probe"]["exit-code"]) == (expected, str(expected)), printed
    stop, *_, begin = re.findall(r"^::(?:stop-commands::)?([0-9a-f]{32})(?:::)?$", printed, re.M)
    assert stop == begin
    assert "\n    our loop.py " in ready.summary
    after = printed.partition(f"::{stop}::\n")[2]
    assert after.startswith("::error title=probe::our loop.py is not right") == bool(expected)


@pytest.mark.slow
@pytest.mark.parametrize(("fail", "expected"), [("true", 4), ("false", 0)])
def test_a_job_runs_scenarios_on_the_gpus_that_its_runner_has(
    ready: Job, monkeypatch: pytest.MonkeyPatch, fail: str, expected: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    ready.inputs = {"run": "scenario=device_math lane=gpu", "fail": fail}
    code, printed = ready.run("run")
    assert code == expected, printed
    assert "needs 1 GPU, and this machine has 0" in printed
    assert "## distributed-bugs: run\n\n    " in ready.summary
    assert "\n    device_math: unsupported" in ready.summary


@pytest.mark.slow
@pytest.mark.launch
def test_a_script_without_an_answer_fails_the_job_with_the_reason(ready: Job) -> None:
    (ready.workspace / "train.py").write_text("print('::error::b')\nraise ValueError('no data')\n")
    ready.inputs = {"probe": "train.py --rows {rows} --accum {k}", "python": sys.executable}
    code, printed = ready.run("probe")
    assert code == 3
    reason = "distributed-bugs: the reference, 1 rank, gives no answer: rank 0: ValueError: no data"
    assert f"\n::error title=probe::{reason}\n" in printed
    assert f"\n    {reason}\n" in ready.summary
