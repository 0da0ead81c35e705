"""Does a training with a feature apply the gradient that the same rows have without it?

Packing, tensor parallelism, checkpointing and the like must not change a gradient. Upstream's own
model gives three gradients at the same weights: with the feature, as a user trains; without it,
which is right; and one without the feature that has the documented fault, made by other means.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import usual_checks

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-3
"""How far (as a fraction of its norm) the gradient of a parameter may be from another. Rounding in
fp32 moves it by 1e-6."""

FLOOR = 1e-4
"""A gradient that is smaller than this part of the gradient of all parameters counts as that large:
where it would be 0 without rounding, its direction means nothing."""

VOCABULARY = 64
SIZES: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""For the configuration of a small model."""

Gradients = Mapping[str, "Tensor"]


@dataclass(frozen=True)
class Feature(usual_checks.Checked):
    """The oracle of scenarios in which a feature of a model changes gradients.

    Without a parameter ``steps`` there is one step."""

    then: str
    """A line for the documented finding: what explains it."""
    modules: Sequence[str] = ()
    """The modules that the bug is about: the gradient of one of them must be wrong. Others may be
    wrong as well, in the same way. Empty if any may."""
    replicas: bool = True
    """Whether all ranks have the same gradients."""
    checks: Sequence[usual_checks.Check] = (usual_checks.loss_ends_higher,)
    """Checks that miss the bug, besides one for values that are not finite."""

    def plan(self, at: api.Position) -> api.Plan:
        """Each step has three numbers for each parameter: the norm of its right gradient, and how
        far the applied one is from the right one and from the documented one, as fractions."""
        compared = api.by_name(api.many(api.SIZE, 3), least=1)
        facts = {"gradients": api.alike(compared) if self.replicas else compared}
        return {
            "step": api.Kind(
                {"loss": api.NUMBER, **facts}, api.each(getattr(at.params, "steps", 1))
            )
        }

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that gradients are not those without the feature."""
        steps = records.of("step")
        wrong_steps = [
            step for step in steps if any(off > TOLERANCE for _, off, _ in _figures(step))
        ]
        if not wrong_steps:
            return None
        explained = all(
            min(off, away) <= TOLERANCE for s in wrong_steps for _, off, away in _figures(s)
        )
        documented = explained and all(map(self._about, wrong_steps))
        example = wrong_steps[0]
        return api.Finding(
            "\n".join([_described(example), *[self.then] * documented]),
            example["step"],
            (),
            records.ranks,
            max(off for step in wrong_steps for _, off, _ in _figures(step)),
            "of the right gradient of a parameter",
            "step",
            documented,
        )

    def _about(self, step: api.Record) -> bool:
        """Whether the gradient of one of the modules is wrong."""
        names = (name for name, figures in step["gradients"].items() if figures[1] > TOLERANCE)
        return not self.modules or any(set(self.modules) & set(name.split(".")) for name in names)

    def picture(self, trials: api.Trials) -> Any:
        """How far each step's gradients are from the right ones."""
        yield api.Bars(
            "The gradient that is farthest from the right one",
            "without the bug, all parameters have the gradient that they have without the feature",
            [
                (variant, f"step {step['step']}", max(off for _, off, _ in _figures(step)))
                for variant, records in trials.items()
                for step in records.of("step", 0)
            ],
            "distance, as a part of the right gradient",
        )


def record(
    ctx: api.Context,
    step: int,
    loss: Tensor,
    actual: Gradients,
    expected: Gradients,
    documented: Gradients,
) -> None:
    """Record a step: its loss, and how its gradients compare with ``expected`` and ``documented``.
    All gradients are by name of the parameter."""
    facts = {name: _beside(name, actual, expected, documented) for name in expected}
    ctx.record("step", step, loss=float(loss.detach()), gradients=facts)


def gradients(model: Any) -> dict[str, Tensor]:
    """A copy of all gradients, by name; zeros where there is none."""
    import torch

    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad.detach().clone()
        for name, p in model.named_parameters()
    }


def of_losses(model: Any, losses: Sequence[Tensor]) -> dict[str, Tensor]:
    """The gradients of the mean of these losses, by name of the parameter."""
    import torch

    names, leaves = zip(*model.named_parameters(), strict=True)
    mean = torch.stack(list(losses)).mean()
    tensors = torch.autograd.grad(mean, leaves, allow_unused=True)
    zeros = (torch.zeros_like(leaf) for leaf in leaves)
    return {
        name: zero if tensor is None else tensor
        for name, tensor, zero in zip(names, tensors, zeros, strict=True)
    }


def _beside(
    name: str, actual: Gradients, expected: Gradients, documented: Gradients
) -> list[float]:
    import torch

    whole = float(torch.stack([gradient.double().norm() for gradient in expected.values()]).norm())
    norm = float(expected[name].double().norm())
    size = max(norm, FLOOR * whole)
    return [
        norm,
        *(float((actual[name] - x[name]).double().norm()) / size for x in (expected, documented)),
    ]


def _figures(step: api.Record) -> list[list[float]]:
    return list(step["gradients"].values())


def _described(step: api.Record) -> str:
    off = {
        name: figures[1] for name, figures in step["gradients"].items() if figures[1] > TOLERANCE
    }
    worst = max(off, key=off.__getitem__)
    total = len(step["gradients"])
    return (
        f"step {step['step']}: the gradients of {len(off)} of {total} parameters are wrong; that "
        f"of {worst} is off by {off[worst]:.3g} of its norm"
    )
