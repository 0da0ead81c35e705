"""The steps that a rank has recorded, and the one that it records now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.rank.probe.recording.finite import Finite
from harness.rank.training.layouts import local

Step = dict[str, Any]

OF_MICRO_BATCHES = ("rows", "losses", "parts", "clips", "drops")
"""The lists of a step that have entries for its micro-batches, in order."""


class Record:
    """What happened in each step. ``now`` is the step that has begun."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.steps: list[Step] = []
        self.seen: list[list[str]] = []
        """The rows of each step; over an epoch, also of the steps that are not recorded."""
        self.in_backward = False
        self.begin()

    def is_open(self) -> bool:
        """Whether steps are still recorded; after the last one, only rows of an epoch are."""
        return len(self.steps) < self._count

    def begin(self) -> None:
        """Begin to record a step."""
        self.seen.append([])
        self.now: Step = {"rows": [], "losses": [], "parts": [], "stale": 0.0, "skipped": 0}
        self.now |= {"clips": [], "raw": None, "drops": [], "own": None, "scaled": False}
        self.now |= {"coarse": 0.0, "draws": False, "stops": False, "modes": set()}
        self.now |= {"cleared": {}, "unused": set(), "left": 0.0, "scale": 0.0, "rates": set()}
        self._trained: dict[str, int] = {}
        """The lengths of the step's lists after the last backward that left gradients."""
        self.finite = Finite()
        self.clipped: list[Any] = []
        """The parameters whose gradients were clipped last."""
        self.left: dict[int, float] = {}
        """By the parameter's id, the norms of the gradients before the step's first backward."""

    def forget(self) -> None:
        """Forget what the model was given since the last step."""
        self.seen[-1] = []
        self.now |= {"rows": [], "unused": set()}
        self.now.pop("places", None)

    def skip(self) -> None:
        """Discard a step that was not taken, but note that and where it overflowed."""
        skipped, overflow = self.now["skipped"] + 1, self.finite.place
        self.begin()
        self.now |= {"skipped": skipped, "overflow": overflow}

    def keep(self) -> None:
        """Keep the step that was taken, and begin the next one."""
        self.steps.append(self.now)
        self.begin()

    def note_stop(self, drew: bool) -> None:
        """Note that the script stopped gradients on purpose, or sampled from the model's output."""
        if not self.in_backward:
            self.now["stops"] = True
            self.now["draws"] |= drew

    def note_trained(self) -> None:
        """Note that a backward has left gradients."""
        self._trained = {what: len(self.now[what]) for what in OF_MICRO_BATCHES}

    def note_cleared(self, parameters: Iterable[Any]) -> None:
        """Note how much of the step belongs to micro-batches whose gradients were cleared: a
        rehearsal before the loop is no part of a step."""
        gradients = (local(p.grad) for p in parameters if p.grad is not None)
        if self._trained and not any(bool(gradient.any()) for gradient in gradients):
            self.now |= {"cleared": self._trained, "raw": None}
            self._trained, self.clipped, self.left = {}, [], {}
