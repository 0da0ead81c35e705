"""Moves weights, outputs and gradients, as an assignment asks: at random, by an ulp, or along a
gradient."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from harness.rank.compare import ulp
from harness.rank.probe import exchange
from harness.rank.probe.exchange import Assignment
from harness.rank.probe.recording.parameters import add
from harness.rank.training.layouts import local


class Noise:
    """The moves of an assignment."""

    def __init__(self, assignment: Assignment) -> None:
        self._moved: set[int] = set()
        file = assignment.shift
        self._shift = exchange.loaded(Path(file).read_bytes()) if file else {}
        self._generator: Any = None
        if assignment.perturb is not None:
            self._generator = torch.Generator().manual_seed(assignment.perturb)

    @property
    def is_random(self) -> bool:
        """Whether weights, outputs and gradients move by ulps."""
        return self._generator is not None

    def move(self, name: str, parameter: Any) -> None:
        """Move a weight before the first step. One that gets another name moves once."""
        new = id(parameter) not in self._moved
        self._moved.add(id(parameter))
        with torch.no_grad():
            mine = local(parameter)
            if self.is_random and new and mine.is_floating_point():
                mine.add_(ulp(mine, self._generator))
        if name in self._shift:
            add(parameter, torch.from_numpy(self._shift[name]))

    def nudged(self, output: Any) -> Any:
        """Move the output of a leaf module, and its gradient, by a random ulp."""
        if not isinstance(output, torch.Tensor) or not output.is_floating_point():
            return output
        if hasattr(output, "full_tensor"):
            return output
        if output.requires_grad:
            output.register_hook(lambda gradient: gradient + ulp(gradient, self._generator))
        return output + ulp(output, self._generator)
