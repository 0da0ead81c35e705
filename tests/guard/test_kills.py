"""Whatever is killed, the training and the command end as they should, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.guard.commands import PATH, TWO, assert_nothing_left, guard, wait_for_step
from tests.sandbox import Sandbox, ended, within

pytestmark = pytest.mark.slow


def test_stop_ends_all_ranks_by_sigterm_so_that_each_can_save(sandbox: Sandbox) -> None:
    end = guard(sandbox, "--on-alarm", "stop", *TWO, "train.py", "fault", "endless", "save")
    assert end.code == 1
    assert {line for line in end.out.splitlines() if "saved" in line} == {
        "saved by 0",
        "saved by 1",
    }
    assert end.err.count(" checked; cost ") == 1, end.err


def test_a_training_that_an_alarm_ends_has_a_summary(sandbox: Sandbox) -> None:
    end = guard(sandbox, "--on-alarm", "stop", *TWO, "train.py", "fault", "endless")
    assert end.code == 1
    (line,) = (line for line in end.err.splitlines() if " checked; cost " in line)
    assert line.startswith("guard: ")
    assert "1 fault; the training was killed" in line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "words",
    [(*TWO, "train.py", "endless"), ("bash", "-c", "python train.py endless; true")],
    ids=["torchrun", "shell"],
)
def test_a_signal_ends_the_training_and_all_its_processes(
    number: signal.Signals, words: tuple[str, ...], sandbox: Sandbox
) -> None:
    process = sandbox.start("guard", *words, PATH=PATH)
    wait_for_step(process)
    process.send_signal(number)
    assert ended(process).code != 0
    assert_nothing_left(sandbox)


@pytest.mark.launch
def test_a_signal_to_all_processes_lets_each_rank_save_and_changes_no_code(
    sandbox: Sandbox,
) -> None:
    """As from a scheduler at a preemption."""
    words = (*TWO, "train.py", "endless", "save")
    plain = subprocess.Popen(
        words,
        cwd=sandbox.cwd,
        env=sandbox.environment(),
        text=True,
        stdout=-1,
        stderr=-1,
        start_new_session=True,
    )
    ends = []
    for process in (plain, sandbox.start("guard", *words, through=("setsid",))):
        wait_for_step(process)
        os.killpg(process.pid, signal.SIGTERM)
        ends.append(ended(process))
    assert_nothing_left(sandbox)
    for end in ends:
        saved = {line for line in end.out.splitlines() if "saved" in line}
        assert saved == {"saved by 0", "saved by 1"}, end.err
    assert ends[0].code == ends[1].code
    assert ends[1].err.count("Sending process") == ends[0].err.count("Sending process")


@pytest.mark.launch
def test_a_training_goes_on_when_guard_is_killed(sandbox: Sandbox) -> None:
    process = sandbox.start("guard", *TWO, "train.py", "slowly")
    wait_for_step(process)
    process.kill()
    end = ended(process)  # all that writes into its pipes
    assert end.out.count("trained") == 2, end.err
    within(60, lambda: sandbox.living() == [], "all has ended")
    guard(sandbox, "true")  # removes the folder of the killed one


def test_ranks_of_a_launcher_that_was_killed_are_ended(sandbox: Sandbox) -> None:
    end = guard(sandbox, "bash", "-c", "sleep 300 & kill -KILL $$")
    assert end.code == 128 + signal.SIGKILL
    assert_nothing_left(sandbox)
