"""All processes of a launch are found, whatever they do at that moment."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from harness.system import processes
from harness.system.launch_token import TOKEN, new_token


def test_a_process_that_executes_another_program_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel shows no environment of it until the other program is there."""
    environ, looks = psutil.Process.environ, set[int]()

    def empty_at_first(process: psutil.Process) -> dict[str, str]:
        if process.pid in looks:
            return environ(process)
        looks.add(process.pid)
        return {}

    monkeypatch.setattr(psutil.Process, "environ", empty_at_first)
    token = new_token()
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, env={TOKEN: token}, stdin=-1) as process:
        ids = [each.pid for each in processes.members(token)]
        process.kill()
    assert ids == [process.pid]
