"""Stands in for Slurm: tasks run when they are submitted, in this process."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.run import slurm
from harness.run.slurm import Shape


class Slurm:
    """Stands in for Slurm: what was submitted, and what is in the queue."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.submitted: list[tuple[list[Any], Shape]] = []
        self.queued: set[str] = set()
        self.cancelled: list[str] = []
        self.lose: Container[Any] = ()
        """The arguments of tasks that Slurm loses."""
        monkeypatch.setattr(slurm, "submit", self.submit)
        monkeypatch.setattr(slurm, "submitit", lambda: None)
        monkeypatch.setattr(slurm, "queued", lambda name: (set(self.queued), ""))
        monkeypatch.setattr(slurm, "cancel", self.cancel)
        monkeypatch.setattr(slurm, "end_of", lambda task: ("NODE_FAIL", f"NODE_FAIL, {task}"))
        for name in ("POLL", "SETTLE", "SOON"):
            monkeypatch.setattr(slurm, name, 0.0)

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
        **_: object,
    ) -> list[str]:
        self.submitted.append((list(arguments), shape))
        names = [f"{len(self.submitted)}_{number}" for number in range(len(arguments))]
        for name, argument in zip(names, arguments, strict=True):
            if argument not in self.lose:
                content = pickle.dumps(("success", do(argument)))
                (folder / slurm.result_file(name)).write_bytes(content)
        return names


@pytest.fixture
def pretended(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(monkeypatch)
