"""What a run prints: plain lines where the output is no terminal."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.bugs.api.spec import Finding, Outcome, Verdict
from harness.bugs.results import Result, RunResult
from harness.run.verdict_text import (
    LOG_LINES,
    last_lines,
    print_failure,
    print_header,
    print_trial,
    print_verdict,
    releases,
)
from harness.system.terminal import Progress, Terminal, table, terminal
from tests.made_up import trial_result
from tests.recording import Recording

Capture = pytest.CaptureFixture[str]
CLEAN = trial_result("fixed", Outcome.CLEAN, Outcome.CLEAN, "15 of 15 [equal]", seconds=9.14)
FOUND = Finding("they part", step=3, parameters=tuple("abcde"), ranks=(0, 1), magnitude=0.13092)
S, I = Outcome.SYMPTOM, Outcome.INCONCLUSIVE  # noqa: E741
CHECKS = {"the norms differ": False}
SYMPTOM = trial_result("buggy", S, S, "they part", finding=FOUND, insufficient_checks=CHECKS)
FAILURE = {"rank": 1, "message": "no"}
LOST = trial_result("buggy", I, S, "rank 1 failed first", failure=FAILURE)


def found(**changes: Any) -> Result:
    return replace(SYMPTOM, finding=Finding("wrong", **changes))


@pytest.mark.parametrize(
    ("trial", "lines"),
    [
        (CLEAN, "  fixed      clean  [9.1 s]\n    15 of 15 [equal]\n"),
        (LOST, "inconclusive  (expected symptom)"),
        (SYMPTOM, "first seen: step 3; ranks 0, 1; off by up to 0.1309; a, b, c and 2 more\n"),
        (SYMPTOM, "a check that misses it (alarm if the norms differ): no alarm\n"),
        (found(step=2, clock="epoch"), "    first seen: epoch 2\n"),
        (found(step=0, clock="epoch"), "    first seen: before the first epoch\n"),
        (
            found(magnitude=0.25, unit="of all samples"),
            "    first seen: off by up to 0.25 of all samples\n",
        ),
    ],
)
def test_a_trial_is_printed_with_its_reason_and_where_the_finding_shows(
    trial: Result, lines: str, capsys: Capture
) -> None:
    print_trial(terminal(), trial)
    assert lines in capsys.readouterr().out


ONE, TWO = {"up": "1", "by": "3"}, {"up": "2", "by": "3"}


@pytest.mark.parametrize(
    ("pins", "text"),
    [
        ({"buggy": ONE, "fixed": ONE}, "up 1, by 3"),
        ({"buggy": ONE, "fixed": TWO, "control": ONE}, "up 1 (buggy, control) / 2 (fixed), by 3"),
        ({"buggy": {}, "fixed": {}}, "torch alone"),
    ],
)
def test_releases_that_differ_name_their_variants(
    pins: dict[str, dict[str, str]], text: str
) -> None:
    assert releases(pins) == text


def test_insufficient_checks_are_printed_only_with_the_symptom(capsys: Capture) -> None:
    print_trial(terminal(), replace(CLEAN, insufficient_checks=CHECKS))
    assert "a check that misses it" not in capsys.readouterr().out


def test_a_long_reason_is_cut_but_a_long_line_is_not_broken(capsys: Capture) -> None:
    print_trial(terminal(), replace(LOST, reason="\n".join(["line"] * 99)))
    assert capsys.readouterr().out.count("line") == LOG_LINES
    print_trial(terminal(), replace(CLEAN, reason="word " * 400))
    out = capsys.readouterr().out
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out


def test_a_verdict_is_printed_with_its_reasons_and_the_run_folder(capsys: Capture) -> None:
    lost = RunResult("bug", Verdict.INCONCLUSIVE, ("buggy: no luck\nat all",), (LOST,))
    print_verdict(terminal(), lost, 12.34, Path("runs/one"))
    assert (
        capsys.readouterr().out
        == "bug: inconclusive (wall time 12.3 s); runs/one\n  buggy: no luck\n"
    )


def test_the_header_names_the_releases_the_lane_and_the_seed(
    recording: Recording, capsys: Capture
) -> None:
    with recording.run() as run:
        print_header(terminal(), run)
    assert capsys.readouterr().out == (
        "bf16_clip: deepspeed 0.19.8, megatron-core 0.16.1; cpu (gloo); seed 0\n"
    )


def write_logs(run: Path, rank: int, **logs: str) -> None:
    folder = run / "buggy" / "logs" / f"rank_{rank}"
    folder.mkdir(parents=True)
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)


def test_the_last_lines_are_those_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    write_logs(tmp_path, 0, stderr="connection closed\n")
    write_logs(tmp_path, 1, stderr="\n".join(map(str, range(99))), stdout="chatter\n")
    assert last_lines(tmp_path, LOST, most=2) == ["97", "98"]


def test_the_end_of_a_traceback_is_preferred_to_the_rest_of_the_log(tmp_path: Path) -> None:
    write_logs(tmp_path, 1, stderr="DeepSpeed's config\n" * 99)
    frame = '  File "{0}.py", line {0}, in run\n    step()\n    ~~~~^^\n'
    frames = "".join(frame.format(n) for n in range(9))
    traceback = f"Traceback (most recent call last):\n{frames}ValueError: wrong\n"
    error = {"message": {"message": "wrong", "extraInfo": {"py_callstack": traceback}}}
    (tmp_path / "buggy" / "logs" / "rank_1" / "error.json").write_text(json.dumps(error))
    assert last_lines(tmp_path, LOST) == [
        '  File "7.py", line 7, in run',
        "    step()",
        '  File "8.py", line 8, in run',
        "    step()",
        "ValueError: wrong",
    ]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"message": "killed"}'])
def test_an_error_file_without_a_traceback_is_ignored(tmp_path: Path, text: str) -> None:
    write_logs(tmp_path, 1, stderr="last words\n")
    (tmp_path / "buggy" / "logs" / "rank_1" / "error.json").write_text(text)
    assert last_lines(tmp_path, LOST) == ["last words"]


def test_the_log_of_a_rank_that_finished_is_not_shown(tmp_path: Path) -> None:
    write_logs(tmp_path, 0, stderr="DeepSpeed's config\n")
    odd = replace(LOST, failure=None)
    assert last_lines(tmp_path, odd) == ["DeepSpeed's config"]
    (tmp_path / "buggy" / "rank_0.jsonl").touch()
    assert last_lines(tmp_path, odd) == []


def test_stdout_is_shown_if_stderr_is_empty_and_nothing_without_logs(tmp_path: Path) -> None:
    assert last_lines(tmp_path, LOST) == []
    write_logs(tmp_path, 1, stderr=" \n", stdout="last words\n")
    assert last_lines(tmp_path, LOST) == ["last words"]


def test_only_the_end_of_a_huge_log_is_read(tmp_path: Path) -> None:
    write_logs(tmp_path, 1, stderr="")
    log = tmp_path / "buggy" / "logs" / "rank_1" / "stderr.log"
    with log.open("r+b") as file:
        file.truncate(1 << 43)  # 8 TiB, none of it on the disk
        file.seek(0, 2)
        file.write(b"\nlast words\n")
    assert last_lines(tmp_path, LOST, most=1) == ["last words"]


MARKED = "[red]a[/] [/nothing] :bug: \x1b[2J\x9b\u202e"
SPELT_OUT = r"[red]a[/] [/nothing] :bug: \x1b[2J\x9b\u202e"


def test_text_of_a_run_is_neither_markup_nor_a_command_to_the_terminal(capsys: Capture) -> None:
    print_trial(terminal(), replace(LOST, reason=MARKED, variant="[/b]"))
    terminal().print(table("", ["[/c]"], [[MARKED]]))
    out = capsys.readouterr().out
    assert out.count(SPELT_OUT) == 2
    assert "[/b]" in out
    assert "[/c]" in out


def test_the_live_line_shows_what_it_is_given_as_text() -> None:
    console = Terminal(file=io.StringIO(), force_terminal=True, width=200, markup=False)
    with Progress(console) as progress:
        progress.say("running [/]", MARKED)
        with console.capture() as captured:
            console.print(progress._spinner)
    assert f"running [/]  {SPELT_OUT}" in captured.get()


@pytest.mark.parametrize(("trial", "with_logs"), [(LOST, True), (SYMPTOM, False)])
def test_logs_are_shown_only_for_inconclusive_trials(
    tmp_path: Path, capsys: Capture, trial: Result, with_logs: bool
) -> None:
    write_logs(tmp_path, 1, stderr="[boom]\n")
    print_failure(terminal(), tmp_path, replace(trial, failure=LOST.failure))
    logs = "    last lines of rank 1:\n    | [boom]\n"
    assert capsys.readouterr().out == (logs if with_logs else "")


def test_progress_off_a_terminal_prints_each_thing_once(capsys: Capture) -> None:
    with Progress(terminal()) as progress:
        for step in ("1", "2"):  # two variants that run at the same time
            progress.say("running buggy", f"step {step}")
            progress.say("running fixed", f"step {step}")
    assert capsys.readouterr().out == "... running buggy\n... running fixed\n"


def test_a_tally_that_changes_often_is_a_line_a_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with Progress(terminal()) as progress:
        for second in range(130):
            clock[0] = second
            progress.tally(f"{second} ended")
    assert capsys.readouterr().out.splitlines() == ["... 0 ended", "... 60 ended", "... 120 ended"]
