"""Bugs that a user accepts: how they are listed, and what they change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.check.accepted import read
from harness.system.errors import ExitCode, UserError
from tests.sandbox import refused

pytestmark = pytest.mark.usefixtures("offline", "working_folder")

Capture = pytest.CaptureFixture[str]


def accept(
    bug: str = "clip_max_for_min", until: str = "", file: str = "distributed-bugs.toml"
) -> None:
    table = "accepted" if file != "pyproject.toml" else "tool.distributed-bugs.accepted"
    end = f"until = {until}\n" if until else ""
    Path(file).write_text(f'[[{table}]]\nbug = "{bug}"\nreason = "no clipping here"\n{end}')


def check(*words: str, release: str = "0.13.2") -> int:
    Path("requirements.txt").write_text(f"deepspeed=={release}\n")
    return main(["check", "-r", "requirements.txt", "scenario=clip_max_for_min", *words])


@pytest.mark.parametrize("file", ["distributed-bugs.toml", "pyproject.toml"])
def test_an_accepted_bug_does_not_count_and_stands_apart_in_one_line(
    file: str, capsys: Capture
) -> None:
    assert check() == ExitCode.NOT_AS_EXPECTED
    capsys.readouterr()
    accept(file=file, until="2999-12-31")
    assert check("--strict") == ExitCode.AS_EXPECTED
    out = capsys.readouterr().out
    assert (
        "\nclip_max_for_min (depends on settings, accepted): no clipping here (until 2999-12-31)\n"
        in out
    )
    assert out.rstrip().endswith("1 bug: 1 accepted")
    assert "remedy" not in out


def test_an_acceptance_that_has_ended_counts_again(capsys: Capture) -> None:
    accept(until="2020-01-31")
    assert check() == ExitCode.NOT_AS_EXPECTED
    assert "counts again: it was accepted until 2020-01-31" in capsys.readouterr().out


def test_an_accepted_bug_that_is_gone_is_reported(capsys: Capture) -> None:
    accept()
    assert check(release="0.13.3") == ExitCode.AS_EXPECTED
    assert "is no longer there (not affected): remove it from" in capsys.readouterr().out


def test_an_unknown_answer_that_is_accepted_is_not_strict(capsys: Capture) -> None:
    assert check("--strict", release="99.0") == ExitCode.INCONCLUSIVE
    accept()
    assert check("--strict", release="99.0") == ExitCode.AS_EXPECTED


def test_github_shows_an_accepted_bug_as_a_notice_and_a_gone_one_as_a_warning(
    capsys: Capture,
) -> None:
    accept()
    assert check("--format", "github") == ExitCode.AS_EXPECTED
    line = capsys.readouterr().out.splitlines()[-1]
    title = "title=clip_max_for_min%3A depends on settings%2C accepted"
    assert line.startswith(f"::notice file=requirements.txt,line=1,{title}")
    assert "no clipping here" in line
    assert check("--format", "github", release="0.13.3") == ExitCode.AS_EXPECTED
    assert capsys.readouterr().out.splitlines()[-1].startswith("::warning file=requirements.txt,")


def test_the_json_has_the_acceptance(capsys: Capture) -> None:
    accept()
    assert check("--json") == ExitCode.AS_EXPECTED
    (bug,) = json.loads(capsys.readouterr().out)["bugs"]
    assert bug["status"] == "affected"
    assert bug["accepted"]["reason"] == "no clipping here"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[accepted]]\nbug = 'clip_max'\nreason = 'x'", "did you mean clip_max_for_min"),
        ("[[accepted]]\nbug = 'clip_max_for_min'", "needs a bug and a reason"),
        ("[[accepted]]\nbug = 'clip_max_for_min'\nreason = ' '", "is empty"),
        ("[[accepted]]\nbug = 'clip_max_for_min'\nreason = 'x'\nuntil = 7", "is no day"),
        ("[[accepted]]\nbug = 'clip_max_for_min'\nreason = 'x'\nuntill = 7", "did you mean until"),
        ("[[accept]]\nbug = 'clip_max_for_min'", "did you mean accepted"),
        ("accepted = 'clip_max_for_min'", "no list of tables"),
        ("accepted = [", "is not valid TOML"),
        (2 * "[[accepted]]\nbug = 'clip_max_for_min'\nreason = 'x'\n", "accepted twice"),
    ],
)
def test_a_mistake_in_the_file_is_one_line(text: str, message: str) -> None:
    Path("distributed-bugs.toml").write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        read(None)
    assert "\n" not in str(caught.value)
    assert check() == ExitCode.USER_MISTAKE


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("file", ["distributed-bugs.toml", "pyproject.toml"])
def test_a_file_with_a_byte_order_mark_is_read(file: str, encoding: str) -> None:
    accept(file=file)
    text = Path(file).read_text()
    Path(file).write_text(text, encoding=encoding)
    assert list(read(None)) == ["clip_max_for_min"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[project\n", "pyproject.toml, which may list accepted bugs, is not valid TOML: "),
        (b"a = '\xff'\n", "cannot read pyproject.toml"),
        (b"tool = 3\n", "pyproject.toml: tool is a number, not a table"),
        (b"[tool]\ndistributed-bugs = 'x'\n", "tool.distributed-bugs is text, not a table"),
        (b"[[tool.distributed-bugs]]\nbug = 'x'\n", "tool.distributed-bugs is a list, not a table"),
    ],
)
def test_a_broken_pyproject_of_the_folder_is_one_line(
    content: bytes, message: str, capsys: Capture
) -> None:
    Path("pyproject.toml").write_bytes(content)
    Path("requirements.txt").write_text("deepspeed==0.13.2\n")
    error = refused(capsys, ["check", "-r", "requirements.txt"])
    assert message in error
    assert "Error" not in error
