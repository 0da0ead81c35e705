"""Stands in for Slurm: tasks run when they are submitted, in this process."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.run import batch, slurm
from harness.run.slurm import End, Shape, Waiting


class Slurm:
    """Stands in for Slurm: what was submitted, and what is in the queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.submitted: list[tuple[str, list[Any], Shape, int]] = []
        self.queued: dict[str, Waiting] = {}
        self.cancelled: list[str] = []
        self.allowed: list[tuple[str, int]] = []
        self.largest = 1001
        self.lose: Container[Any] = ()
        """The arguments of tasks that Slurm loses."""
        monkeypatch.setattr(slurm, "submit", self.submit)
        monkeypatch.setattr(slurm, "largest_array", lambda: self.largest)
        monkeypatch.setattr(slurm, "submitit", lambda: None)
        monkeypatch.setattr(slurm, "_queued", lambda name: (dict(self.queued), ""))
        monkeypatch.setattr(slurm, "cancel", self.cancel)
        monkeypatch.setattr(slurm, "allow", lambda job, n: self.allowed.append((job, n)))
        monkeypatch.setattr(slurm, "end_of", lambda task: End("NODE_FAIL", f"NODE_FAIL, {task}"))
        for name, value in (("POLL", 0.0), ("SETTLE", 0.0)):
            monkeypatch.setattr(batch, name, value)
        monkeypatch.setattr(slurm, "SOON", 0.0)

    def cancel(self, name: str) -> bool:
        self.cancelled.append(name)
        return True

    def submit(
        self,
        do: Callable[[Any], Any],
        arguments: Sequence[Any],
        on: object,
        shape: Shape,
        *,
        folder: Path,
        at_once: int,
        **_: object,
    ) -> str:
        import pickle

        job = str(len(self.submitted) + 1)
        self.submitted.append((job, list(arguments), shape, at_once))
        for number, argument in enumerate(arguments):
            name = f"{job}_{number}" if len(arguments) > 1 else job
            if argument not in self.lose:
                content = pickle.dumps(("success", do(argument)))
                (folder / slurm.result_file(name)).write_bytes(content)
        return job


@pytest.fixture
def pretended(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)
