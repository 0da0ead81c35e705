"""The losses of evaluations that a script reports, through what packages have for that.

How a loss is averaged over ranks is the affair of the script or its package, after the model. So
the number that is reported is compared, not the model's.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Any

LOSS = re.compile(r"(eval|val|valid|validation|test|dev)[_/ -].*loss", re.IGNORECASE)
"""The names of losses of evaluations."""

REPORTERS = (
    ("transformers.trainer", "Trainer", "log"),
    ("accelerate.accelerator", "Accelerator", "log"),
    ("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar"),
    ("lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
    ("pytorch_lightning.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
)
"""By module and class, the method that is given numbers, or returns them."""


class Reported:
    """The losses that this rank has reported."""

    def __init__(self) -> None:
        self.values: list[tuple[int, str, float]] = []
        """After how many steps, under which name, which loss."""
        self._watched: set[tuple[str, str, str]] = set()

    def install(self, steps: Callable[[], int]) -> None:
        """Watch the packages that are imported by now. ``steps`` returns the steps taken so far."""
        for place in REPORTERS:
            module, kind, method = place
            owner = getattr(sys.modules.get(module), kind, None)
            if owner is not None and place not in self._watched:
                self._watched.add(place)
                setattr(owner, method, self._watch(getattr(owner, method), steps))

    def _watch(self, report: Any, steps: Callable[[], int]) -> Any:
        @functools.wraps(report)
        def watched(owner: Any, *arguments: Any, **named: Any) -> Any:
            value = report(owner, *arguments, **named)
            for name, loss in _losses([*arguments, *named.values(), value]):
                self.values.append((steps(), name, loss))
            return value

        return watched


def _losses(given: list[Any]) -> Iterator[tuple[str, float]]:
    """The losses of evaluations among the arguments of a report, and in what it returns."""
    pairs: list[tuple[Any, Any]] = list(pairwise(given))  # a name, and then its number
    for one in given:
        for each in one if isinstance(one, (list, tuple)) else [one]:
            pairs += each.items() if isinstance(each, Mapping) else []
    for name, value in pairs:
        if isinstance(name, str) and LOSS.search(name):
            number = value.item() if hasattr(value, "item") else value
            if isinstance(number, (int, float)):
                yield name, float(number)
