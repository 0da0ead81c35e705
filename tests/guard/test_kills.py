"""Whatever is killed, the training and the command end as they should, and nothing is left."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from tests.guard.commands import TWO, assert_nothing_left, guard, wait_for_step
from tests.sandbox import Sandbox, ended

pytestmark = pytest.mark.slow


def test_stop_ends_all_ranks_by_sigterm_so_that_each_can_save(sandbox: Sandbox) -> None:
    end = guard(sandbox, "--on-alarm", "stop", *TWO, "train.py", "fault", "endless", "save")
    assert end.code == 1
    assert {line for line in end.out.splitlines() if "saved" in line} == {
        "saved by 0",
        "saved by 1",
    }


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    "words",
    [(*TWO, "train.py", "endless"), ("bash", "-c", "python train.py endless; true")],
    ids=["torchrun", "shell"],
)
def test_a_signal_ends_the_training_and_all_its_processes(
    number: signal.Signals, words: tuple[str, ...], sandbox: Sandbox
) -> None:
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    process = sandbox.start("guard", *words, PATH=path)
    wait_for_step(process)
    process.send_signal(number)
    assert ended(process).code != 0
    assert_nothing_left(sandbox)


def test_ranks_of_a_launcher_that_was_killed_are_ended(sandbox: Sandbox) -> None:
    end = guard(sandbox, "bash", "-c", "sleep 300 & kill -KILL $$")
    assert end.code == 128 + signal.SIGKILL
    assert_nothing_left(sandbox)


def test_another_signal_is_passed_on(sandbox: Sandbox) -> None:
    code = (
        "import signal, sys; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9)); "
        "print('step', flush=True); signal.pause()"
    )
    process = sandbox.start("guard", sys.executable, "-c", code)
    wait_for_step(process)
    process.send_signal(signal.SIGUSR1)
    assert ended(process).code == 9
