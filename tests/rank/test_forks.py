"""A forked child runs a function, tells its parent the results, and never outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.rank import forks, supervisor
from harness.rank.forks import Child, Children
from tests.sandbox import PATIENCE, ROOT, lives, within

linux = pytest.mark.skipif(not supervisor.LINUX, reason="only Linux signals the death of a parent")


def sleep() -> None:
    time.sleep(1000)


def messages_of(*functions: Callable[[], object]) -> list[tuple[int, Any]]:
    """What children that call these functions report, each with the child's number."""
    with Children() as children:
        numbers = {children.start(function): n for n, function in enumerate(functions)}
        return [(numbers[child], message) for child, message in children.hear()]


def code_of(function: Callable[[], object], seconds: float = PATIENCE) -> int | None:
    with Children() as children:
        child = children.start(function)
        child.allow(seconds)
        assert list(children.hear()) == [(child, None)]
    return child.code


def fail() -> None:
    raise ValueError("this child fails")


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (lambda: None, 0),
        (partial(sys.exit, 7), 7),
        (partial(sys.exit, "a reason"), 1),
        (fail, 1),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM),
    ],
)
def test_the_parent_learns_how_a_child_ended(function: Callable[[], object], code: int) -> None:
    assert code_of(function) == code
    assert forks.exit_code(function) == code


def test_messages_arrive_in_order_and_before_the_end() -> None:
    def count() -> None:
        for number in range(3):
            forks.report({"number": number, "text": "x" * 100_000})

    expected: list[Any] = [{"number": n, "text": "x" * 100_000} for n in range(3)]
    assert messages_of(count) == [(0, message) for message in [*expected, None]]


def test_a_child_that_dies_keeps_what_it_has_reported_and_no_half_of_a_message() -> None:
    def die() -> None:
        forks.report("first")
        os.write(forks._pipe or 0, b'"secon')
        os.kill(os.getpid(), signal.SIGKILL)

    assert messages_of(die) == [(0, "first"), (0, None)]


def test_one_that_is_no_child_cannot_report() -> None:
    with pytest.raises(RuntimeError, match="no child"):
        forks.report("anything")


def test_output_goes_to_files_also_of_a_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def talk() -> None:
        print("hello")
        fail()

    with capsys.disabled(), Children() as children:
        children.start(talk, (tmp_path / "out", tmp_path / "err"))
        for _ in children.hear():
            pass
    assert (tmp_path / "out").read_text() == "hello\n"
    assert (tmp_path / "err").read_text().endswith("ValueError: this child fails\n")


def test_a_child_does_not_print_again_what_its_parent_has_not_written_yet() -> None:
    script = "from harness.rank import forks; print('once'); forks.exit_code(lambda: None)"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout == "once\n"


def test_a_child_is_killed_at_its_deadline_and_a_message_can_postpone_it() -> None:
    def report_and_sleep() -> None:
        forks.report("begins")
        sleep()

    with Children() as children:
        silent, talking = children.start(sleep), children.start(report_and_sleep)
        silent.allow(0.1)
        ended: list[Child] = []
        for child, message in children.hear():
            if message:
                child.allow(0.3)
            else:
                ended.append(child)
    assert {child.code for child in ended} == {-signal.SIGKILL}
    assert silent.late
    assert talking.late
    assert set(ended) == {silent, talking}


def test_a_child_may_start_while_the_others_are_heard() -> None:
    numbers = []
    with Children() as children:
        children.start(partial(forks.report, 0))
        for _, message in children.hear():
            if message is not None:
                numbers.append(message)
            elif len(numbers) < 3:
                children.start(partial(forks.report, len(numbers)))
    assert numbers == [0, 1, 2]


def test_leaving_the_context_kills_the_children() -> None:
    with Children() as children:
        child = children.start(sleep)
        process = psutil.Process(child.pid)
    assert child.code == -signal.SIGKILL
    assert not process.is_running()


@pytest.mark.parametrize("number", forks.HANDLED)
def test_a_signal_that_its_parent_handles_ends_a_child(number: signal.Signals) -> None:
    before = signal.signal(number, lambda *_: None)
    try:
        assert code_of(lambda: os.kill(os.getpid(), number)) == -number
    finally:
        signal.signal(number, before)


def test_a_signal_that_its_parent_ignores_is_ignored_by_a_child() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert code_of(lambda: os.kill(os.getpid(), signal.SIGHUP)) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_what_a_child_has_forked_does_not_hide_its_end(tmp_path: Path) -> None:
    def leave_a_process() -> None:
        if pid := os.fork():
            (tmp_path / "pid").write_text(str(pid))
        else:
            sleep()

    with Children() as children:
        child = children.start(leave_a_process)
        child.allow(PATIENCE)
        assert list(children.hear()) == [(child, None)]
    assert not child.late
    psutil.Process(int((tmp_path / "pid").read_text())).kill()


def test_a_child_with_a_session_takes_its_processes_along(tmp_path: Path) -> None:
    def leave_a_process() -> None:
        (tmp_path / "pid").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))

    with Children() as children:
        children.start(leave_a_process, session=True)
        for _ in children.hear():
            pass
    pid = int((tmp_path / "pid").read_text())
    within(PATIENCE, lambda: not lives(pid), "the end of the process")


@linux
def test_children_of_children_end_with_a_parent_that_is_killed() -> None:
    script = """
import time
from functools import partial
from harness.rank import forks
from harness.rank.forks import Children

def live(depth):
    if depth:
        Children().start(partial(live, depth - 1), session=True)
    else:
        print("ready", flush=True)
    time.sleep(1000)

live(2)
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    assert parent.stdout.readline() == "ready\n"
    below = psutil.Process(parent.pid).children(recursive=True)
    assert len(below) == 2
    parent.kill()
    parent.communicate()
    assert psutil.wait_procs(below, PATIENCE)[1] == []
