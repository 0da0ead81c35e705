"""Frozen weights stay as they are: in a training that changes them they do so in all layouts."""

from __future__ import annotations

import re
from typing import Any

from harness.rank import events
from harness.rank.probe.recording.parameters import NamedParameters
from harness.rank.training.layouts import local
from harness.system.text import several

FROZEN = "frozen weights change in the loop"
"""How the note begins: by these words a recorded note is recognised."""

MOVED = 1e-6
"""If sums change by more than this part of the weights' size, it is reported: adapters that are
merged for an evaluation, and taken out again, leave rounding."""

UPDATED = re.compile(
    r"(?<![a-zA-Z])(ema|avg|tau|step)|average|shadow|teacher|target|momentum|swa|codebook|cluster|"
    r"correction|expert_bias|running_|temperature|_k\b|_m\b",
    re.IGNORECASE,
)
"""Matches the names of weights that a loop itself updates: an average of others, the balance of
experts, a temperature."""

AT_ONCE = 1 << 24
"""Values that are added at once: all of a large weight in fp64 would take gigabytes."""


class Frozen:
    """Sums over the frozen weights of the model before each step."""

    def __init__(self, names: NamedParameters) -> None:
        self._names = names
        self._sizes: dict[str, tuple[float, float, int]] = {}
        """By name, of each weight its sum, its norm, and the number of its values."""
        self._steps = 0
        self._note = ""

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""
        events.instrument.on(events.Gradients, before=self._look)

    def report(self) -> list[str]:
        """A line on the first change."""
        return [self._note] if self._note else []

    def _look(self, event: events.Gradients) -> None:
        if self._note:
            return
        sizes = {
            name: _size(p)
            for name, p in self._names.items()
            if not (p.requires_grad or p.is_meta or UPDATED.search(name))
            and p.is_floating_point()
            and p.numel() > 1
        }
        changes = {n: _change(s, self._sizes[n]) for n, s in sizes.items() if n in self._sizes}
        if changed := {name: part for name, part in changes.items() if part > MOVED}:
            self._note = (
                f"{FROZEN}: between the steps {self._steps} and {self._steps + 1}, "
                f"{several(changed)}, by {max(changed.values()):.2g} of their size. No fault if "
                "the loop moves them on purpose"
            )
        self._sizes = sizes
        self._steps += 1


def _size(parameter: Any) -> tuple[float, float, int]:
    values = local(parameter).detach().reshape(-1)
    total = squares = 0.0
    for part in values.split(AT_ONCE):
        total += float(part.double().sum())
        squares += float(part.double().square().sum())
    return total, squares**0.5, values.numel()


def _change(size: tuple[float, float, int], before: tuple[float, float, int]) -> float:
    """How far a sum or norm is from the one before, as a part of the weight's size."""
    whole = max(size[1], before[1])
    by_sum, by_norm = abs(size[0] - before[0]) / max(size[2], 1) ** 0.5, abs(size[1] - before[1])
    return max(by_sum, by_norm) / whole if whole else 0.0
