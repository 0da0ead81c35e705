"""A model whose relations are checked: how it is constructed, its batch, and its right results.

A relation copies what it changes, so the next relation sees the same model.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from harness.rank.compare import SAFE, Array, Named, Spread, length, ulp
from harness.rank.models.answer import NoAnswer, Wrong
from harness.rank.models.heads import CAUSAL, HEADS, Head, Labels
from harness.rank.models.judging import arrays, off_by, rounding

SEED = 7
SEEDS = (1, 2)
"""The seeds of the passes whose weights are moved by an ulp."""

DECODER = "decoder_input_ids"

Batch = Mapping[str, Any]
Make = Callable[[], tuple[Any, dict[str, Any]]]
"""Constructs a model and its batch, the same each time."""


@dataclass
class Subject:
    """One model, constructed once in this process."""

    name: str
    make: Make
    folder: Path
    """A folder for checkpoints, which is deleted later."""
    construct: Callable[[], Any] | None = None
    """Makes the model with the weights of its own initialization."""
    head: Head = HEADS[CAUSAL]

    @cached_property
    def _model_and_batch(self) -> tuple[Any, dict[str, Any]]:
        seed()
        module, batch = self.make()
        return module.eval(), batch

    @property
    def module(self) -> Any:
        """The model, in evaluation mode; on the CPU, unless it was moved."""
        return self._model_and_batch[0]

    @property
    def batch(self) -> dict[str, Any]:
        """Tensors by argument; the first dimension of each is the rows."""
        return self._model_and_batch[1]

    @property
    def tokens(self) -> Any:
        """The token ids, rows x length; raises NoAnswer if the batch has none."""
        if "input_ids" not in self.batch:
            raise NoAnswer("the batch has no input_ids")
        return self.batch["input_ids"]

    def beside(self, count: int) -> dict[str, Any]:
        """The decoder inputs that go with the first ``count`` rows, for encoder-decoder models."""
        return {DECODER: self.batch[DECODER][:count]} if DECODER in self.batch else {}

    @property
    def for_each_token(self) -> bool:
        """Whether its logits belong to its input tokens, not to a row or to a decoder's tokens."""
        return self.head.labels is not Labels.ROW and DECODER not in self.batch

    @property
    def config(self) -> Any:
        return getattr(self.module, "config", None)

    def move(self, device: str) -> None:
        """Move the model and its batch."""
        self._model_and_batch[0].to(device)
        for name, value in self._model_and_batch[1].items():
            self._model_and_batch[1][name] = value.to(device)

    def copy(self) -> Any:
        """A copy of the model, to change."""
        return copy.deepcopy(self.module)

    def takes(self, name: str) -> bool:
        """Whether the model's forward has a parameter with this name."""
        return name in inspect.signature(self.module.forward).parameters

    def loss_inputs(self) -> dict[str, Any]:
        """The batch; raises NoAnswer without labels."""
        if "labels" not in self.batch:
            raise NoAnswer("the batch has no labels")
        return dict(self.batch)

    @cached_property
    def gradient(self) -> tuple[Named, Spread]:
        """The gradient of the whole batch, and how far rounding changes it."""
        inputs = self.loss_inputs()
        expected, spread = self.measured(lambda: gradient(self.module, inputs))
        again = gradient(self.module, inputs)
        if any((expected[n] != again[n]).any() for n in expected):
            raise NoAnswer("the same pass with the same seed gives two gradients")
        return expected, spread

    @cached_property
    def allowed(self) -> float:
        """The part of the norm of logits that rounding explains, divided by SAFE."""
        expected, spread = self.measured(lambda: {"logits": logits(self.module, self.batch)})
        again = logits(self.module, self.batch, other_seed=True)
        if (expected["logits"] != again).any():
            raise NoAnswer("another seed gives other logits: a pass draws random numbers")
        return spread["logits"] / length(expected["logits"])

    def measured(
        self, compute: Callable[[], Named], seeds: Sequence[int] = SEEDS
    ) -> tuple[Named, Spread]:
        """What a function computes of the model, and how far rounding changes that."""
        expected, perturbed = compute(), []
        for number in seeds:
            with ulp_away(self.module, number):
                perturbed.append(compute())
        return expected, rounding(expected, perturbed)

    def equal(self, actual: Array, expected: Array) -> bool:
        """Whether logits differ by no more than rounding explains; NaN differs."""
        return length(actual - expected) <= SAFE * self.allowed * length(expected)

    def require_equal(self, actual: Array, expected: Array, case: str) -> None:
        """Raise Wrong if logits differ by more than rounding. ``case`` ends the reason."""
        if not self.equal(actual, expected):
            raise Wrong(f"{off_by(actual, expected)} {case}")


def seed(number: int = SEED) -> None:
    torch.manual_seed(number)


def rows(batch: Batch, chosen: slice) -> dict[str, Any]:
    """Some rows of a batch."""
    return {n: (v[chosen] if getattr(v, "ndim", 0) else v) for n, v in batch.items()}


def run(module: Any, inputs: Batch, *, other_seed: bool = False) -> Any:
    """Set the generator's seed, run the model and return its output."""
    seed(SEED + other_seed)
    return module(**inputs)


def logits_of(output: Any) -> Any:
    """The logits in a model's output. Raises NoAnswer if there are none."""
    return _part_of(output, "logits")


def loss_of(output: Any) -> Any:
    """The loss in a model's output. Raises NoAnswer if there is none."""
    return _part_of(output, "loss")


def _part_of(output: Any, name: str) -> Any:
    part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    if part is None:
        raise NoAnswer(f"the model returns no {name}")
    return part


def logits(module: Any, inputs: Batch, *, other_seed: bool = False) -> Any:
    """The logits of a pass without gradients, as an array."""
    with torch.no_grad():
        scores = logits_of(run(module, inputs, other_seed=other_seed))
    return arrays({"": scores})[""]


def gradient(module: Any, *batches: Batch) -> Named:
    """The gradient of the sum of the losses of some batches, by parameter."""
    module.zero_grad(set_to_none=True)
    for inputs in batches:
        loss_of(run(module, inputs)).backward()
    by_name = gradients(module)
    module.zero_grad(set_to_none=True)
    return by_name


def gradients(module: Any) -> Named:
    """The gradients that parameters have now."""
    return arrays({n: p.grad for n, p in module.named_parameters() if p.grad is not None})


@contextlib.contextmanager
def ulp_away(module: Any, number: int) -> Iterator[None]:
    """Move each weight by -1, 0 or +1 ulp within the context; restore it afterwards."""
    generator = torch.Generator().manual_seed(number)
    floats = [p for p in module.parameters() if p.is_floating_point()]
    before = [p.detach().clone() for p in floats]
    with torch.no_grad():
        for p in floats:
            p.add_(ulp(p, generator))
    try:
        yield
    finally:
        with torch.no_grad():
            for p, old in zip(floats, before, strict=True):
                p.copy_(old)
