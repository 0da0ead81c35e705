"""A command gets each signal once, whoever sends it to whom, and ends when it must."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.training.guard import child
from tests.sandbox import ROOT, ended, hear_signals, living, within

COMMAND = """\
import os, signal, sys, time

def note(number, frame):
    os.write(1, b"got %d\\n" % number)
    noted.append(number)

noted = []
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, note)
os.write(1, b"ready\\n")
while len(noted) < int(sys.argv[1]):
    time.sleep(0.02)
time.sleep(0.5)  # it saves
os.write(1, b"saved %d\\n" % len(noted))
sys.exit(5)
"""
"""Ends a little later than it got so many signals."""

RUN = """\
import json, os, sys
from harness.training.guard import child

words, mark, constants, stops = json.loads(sys.argv[1])
vars(child).update(constants)
environment = {**os.environ, "MARK": mark}
ending = child.run(words, environment, "MARK", lambda: stops and os.path.exists("stop"))
os.write(1, f"{ending}\\n".encode())
sys.exit(ending.code)
"""


class Guarded:
    """A command that runs as guard runs it, in a group of its own."""

    def __init__(
        self, folder: Path, words: Sequence[str], stops: bool = False, **constants: float
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.words = json.dumps([words, self.mark, constants, stops])
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, self.words],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), "LEFT": self.mark},
            text=True,
            stdout=-1,
            stderr=-1,
            start_new_session=True,
            preexec_fn=hear_signals,
        )

    def wait_for(self, text: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if text in line:
                return
        raise AssertionError(self.process.stderr.read() if self.process.stderr else "it ended")

    def living(self) -> list[psutil.Process]:
        """The processes of the command, and those beside it."""
        return living(self._has)

    def witnesses(self) -> list[int]:
        """The processes that show whether a signal is of the group."""
        witnesses = living(lambda each: self._has(each) and "read line" in each.cmdline())
        return [process.pid for process in witnesses]

    def _has(self, each: psutil.Process) -> bool:
        group = self.process.pid
        return each.environ().get("LEFT") == self.mark or child._group(each.pid) == group


Start = Callable[..., Guarded]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a Python command that ends after so many signals, through a shell if it is one."""
    started: list[Guarded] = []

    def start(signals: int, through: Sequence[str] = (), **options: Any) -> Guarded:
        (tmp_path / "command.py").write_text(COMMAND)
        words = [*through, sys.executable, "command.py", str(signals), uuid.uuid4().hex]
        started.append(Guarded(tmp_path, words, **options))
        started[-1].wait_for("ready")
        within(60, lambda: started[-1].witnesses(), "there is a witness")
        return started[-1]

    yield start
    for guarded in started:
        for process in guarded.living():
            process.kill()
        guarded.process.communicate()


def to_guard(guarded: Guarded, number: int) -> None:
    os.kill(guarded.process.pid, number)


def to_group(guarded: Guarded, number: int) -> None:
    os.killpg(guarded.process.pid, number)


def to_both(guarded: Guarded, number: int) -> None:
    """As timeout(1) does."""
    to_guard(guarded, number)
    to_group(guarded, number)


def to_all_by_name(guarded: Guarded, number: int) -> None:
    """As ``pkill -f`` does with a word of the command."""
    word = json.loads(guarded.words)[0][-1]
    for process in living(lambda each: any(word in part for part in each.cmdline())):
        process.send_signal(number)


def to_guard_by_name(guarded: Guarded, number: int) -> None:
    """As ``pkill -f`` does with the name of this tool."""
    for process in living(
        lambda each: any("harness.training.guard" in part for part in each.cmdline())
    ):
        if process.environ().get("LEFT") == guarded.mark:
            process.send_signal(number)


SENDERS = (to_guard, to_group, to_both, to_all_by_name, to_guard_by_name)
CASES = [
    *((send, signal.SIGTERM) for send in SENDERS),
    *((send, number) for send in SENDERS[:2] for number in (signal.SIGINT, signal.SIGUSR1)),
]


@pytest.mark.parametrize(("send", "number"), CASES)
def test_a_command_gets_a_signal_once(
    start: Start, send: Callable[[Guarded, int], None], number: signal.Signals
) -> None:
    guarded = start(1, AT_ONCE=5.0 if send is to_both else 0.2)
    send(guarded, number)
    end = ended(guarded.process)
    assert end.code == 5, end.err
    assert end.out.splitlines()[:2] == [f"got {int(number)}", "saved 1"]
    assert guarded.living() == []


@pytest.mark.slow
@pytest.mark.parametrize("first", [to_guard, to_group])
@pytest.mark.parametrize("second", [to_guard, to_group])
def test_a_second_signal_is_another_one(
    start: Start, first: Callable[[Guarded, int], None], second: Callable[[Guarded, int], None]
) -> None:
    guarded = start(2)
    before = guarded.witnesses()
    first(guarded, signal.SIGTERM)
    guarded.wait_for("got")
    if first is to_group:
        within(60, lambda: guarded.witnesses() not in ([], before), "there is another witness")
    second(guarded, signal.SIGTERM)
    assert ended(guarded.process).out.splitlines()[:2] == ["got 15", "saved 2"]


def test_what_a_shell_leaves_gets_a_signal_of_the_group_once(start: Start) -> None:
    guarded = start(1, ("bash", "-c", '"$@"; true', "bash"))
    to_group(guarded, signal.SIGTERM)
    end = ended(guarded.process)
    assert end.code == 128 + signal.SIGTERM
    assert end.out.splitlines()[:2] == [f"got {int(signal.SIGTERM)}", "saved 1"]
    assert guarded.living() == []


def test_a_command_that_ignores_an_alarm_is_ended_by_force(start: Start, tmp_path: Path) -> None:
    guarded = start(99, stops=True, GRACE_AFTER_ALARM=0.5)
    (tmp_path / "stop").touch()
    end = ended(guarded.process)
    assert end.code == 128 + signal.SIGKILL
    assert "got 15" in end.out
    assert "stopped=True" in end.out
    assert guarded.living() == []


def test_a_command_goes_on_when_guard_is_killed_and_nothing_else_does(start: Start) -> None:
    guarded = start(1)
    to_guard(guarded, signal.SIGKILL)
    guarded.process.wait()
    within(60, lambda: len(guarded.living()) == 1, "the witness ends")
    (command,) = guarded.living()
    assert "command.py" in command.cmdline()
    command.terminate()
    assert "saved 1" in ended(guarded.process).out
