"""A step of the optimizer must move the model's own weights, by the optimizer's formula.

After a model was wrapped, split or loaded, an optimizer may still update tensors that nobody
computes with. Or a step happens that nobody asked for. Both leave a loss that goes down, only
slower.

    detector = Detector()
    detector.attach(model, optimizer)      # before the first forward pass
    print(detector.step(number))           # after each step of the optimizer: None, or an alarm

Knows SGD, Adam and AdamW of torch, but not amsgrad; of other optimizers it looks only at whose
weights they have.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.arithmetic import projection, step_by_formula
from harness.detectors.sampling import Sampled, before_step, gradient_scale, samples, scaling

NEAR = 2e-2
"""How far (as a fraction of the right step) a step may be."""

KINDS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)

ROUNDING = 4
"""Units in the last place of a weight by which a step may be off."""


class Detector:
    """Compares each weight's step with the formula, at a few values."""

    def attach(
        self,
        model: nn.Module,
        optimizer: Any,
        loader: Any = None,
        *,
        group: dist.ProcessGroup | None = None,
    ) -> str | None:
        self._found: list[tuple[Sampled, dict[str, Any]]] = []
        self._before: list[tuple[Tensor, Tensor | None, dict[str, Any], dict[str, Any]]] = []
        self._optimizer, self._resumed = optimizer, False
        self._stepped = _stepped(optimizer)
        if not isinstance(optimizer, torch.optim.Optimizer):
            return None
        groups = {id(p): g for g in optimizer.param_groups for p in g["params"]}
        trained = [p for p in model.parameters() if p.requires_grad]
        if not any(id(p) in groups for p in trained) and trained:
            updated = [p for g in optimizer.param_groups for p in g["params"]]
            if _kinds(updated) == _kinds(trained):
                return "the optimizer updates none of the model's parameters, but copies of them"
            return None  # fp32 copies, or shards
        ids = {id(p) for p in model.parameters()}
        foreign = sum(key not in ids for key in groups)
        missing = [
            name for name, p in model.named_parameters() if p.requires_grad and id(p) not in groups
        ]
        if foreign and missing:
            return f"the optimizer updates {foreign} tensors of no model, and not {missing[0]}"
        sampled = list(samples(model))
        self._found = [(s, groups[id(s.parameter)]) for s in sampled if id(s.parameter) in groups]
        before_step(optimizer, self._look)
        return None

    def _look(self) -> None:
        self._before = [
            (s.of(s.parameter), self._gradient(s), self._state(s), {**group, "params": ()})
            for s, group in self._found  # a scheduler may change the group before step() is called
        ]

    def _gradient(self, sample: Sampled) -> Tensor | None:
        gradient = sample.parameter.grad
        if gradient is None or gradient.is_sparse:
            return None
        return sample.of(gradient) / gradient_scale(self._optimizer)

    def _state(self, sample: Sampled) -> dict[str, Any]:
        if scaling(self._optimizer).taken == 1 and not (self._stepped or self._resumed):
            return {}  # what a skipped step has left must not matter
        state = self._optimizer.state.get(sample.parameter, {})
        return {
            key: sample.of(value) if value.shape == sample.parameter.shape else float(value)
            for key, value in state.items()
            if isinstance(value, torch.Tensor)
            and (value.numel() == 1 or value.shape == sample.parameter.shape)
        }

    def load(self, path: Any) -> None:
        self._resumed = True

    def step(self, number: int) -> str | None:
        if number == 1 and self._stepped and not self._resumed:
            return "the optimizer had taken a step before the training's first one"
        kind = type(self._optimizer)
        for (sample, _), (weights, gradient, state, group) in zip(
            self._found, self._before, strict=False
        ):
            if kind not in KINDS or group.get("amsgrad"):
                continue
            if gradient is None or not bool(gradient.isfinite().all()):
                continue
            actual = sample.of(sample.parameter) - weights
            expected = step_by_formula(kind.__name__, group, weights, gradient, state)
            if alarm := _judged(
                sample.name, actual, expected, weights, sample.parameter.dtype, group
            ):
                return alarm
        return None


def _kinds(parameters: list[Any]) -> list[tuple[str, tuple[int, ...]]]:
    return sorted((str(p.dtype), tuple(p.shape)) for p in parameters)


def _stepped(optimizer: Any) -> bool:
    """Whether an optimizer has counted a step, also one that DeepSpeed wraps."""
    inner = getattr(optimizer, "optimizer", optimizer)
    counts = [state.get("step", 0) for state in getattr(inner, "state", {}).values()]
    return any(float(count) > 0 for count in counts)


def _judged(
    name: str,
    actual: Tensor,
    expected: Tensor,
    weights: Tensor,
    dtype: torch.dtype,
    group: dict[str, Any],
) -> str | None:
    rounding = ROUNDING * torch.finfo(dtype).eps * weights.abs().max() + 1e-12
    off = (actual - expected).abs().max()
    if float(off) <= max(float(rounding), NEAR * float(expected.abs().max())):
        return None
    if not float(actual.abs().max()):
        return f"{name} was not moved by the step, although it has a gradient"
    part = projection(actual, expected)
    ratio = part.ratio if part.right else math.inf
    return f"{name} moved {ratio:.4g} times as far as the optimizer's formula says"
