"""Does a training in fp16 or bf16 begin as plain torch's would, however its optimizer is sharded?

At each of the first steps a rank records ``begun``: what plain torch computes for the same weights
and the complete batch, the gradient that reached the optimizers of all ranks together, and how far
the weights are from where torch's own optimizer leads. These are norms and means over all weights:
rounding can change the sign of a small gradient, and then Adam moves that weight the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import stepped

if TYPE_CHECKING:
    from torch import Tensor

STEPS = 3
"""How many first steps are watched; each costs another forward and backward pass."""

TOLERANCE = 0.02
"""How far (as a fraction) a loss or a norm may be from plain torch's; rounding moves it by 1e-3."""

ASIDE = 0.1
"""How far the weights may be from where plain torch's steps lead, as a part of the way. Rounding
alone moves them by 1e-3 in the third step."""


def plan(steps: int) -> api.Plan:
    """The records of the first steps of a training that has ``steps``."""
    facts = {
        "loss": api.MAY_OVERFLOW,
        "reference_loss": api.MAY_OVERFLOW,
        "gradient": api.alike(api.MAY_OVERFLOW),
        "got": api.MAY_OVERFLOW,
        "scale": api.SIZE,
        "rate": api.SIZE,
        "aside": api.MAY_OVERFLOW,
    }
    return {"begun": api.Kind(facts, range(1, min(STEPS, steps) + 1))}


class Watch:
    """Watches the first steps of a DeepSpeed engine; ``make`` makes torch's own optimizer.

    The model takes a batch and returns its mean loss; the batches of all ranks have equal sizes.
    """

    def __init__(self, engine: Any, make: Callable[[Iterable[Any]], Any], clipping: float) -> None:
        self.engine, self.clipping = engine, clipping
        self.scale = 1.0
        """What this step multiplies the loss with."""
        self.base = getattr(engine.optimizer, "optimizer", engine.optimizer)
        self.parameters = dict(engine.module.named_parameters())
        dtype = self.base.param_groups[0]["params"][0].dtype
        self.copies = {
            n: p.detach().to(dtype).clone().requires_grad_() for n, p in self.parameters.items()
        }
        self.torchs = make(list(self.copies.values()))
        stepped.as_made(self.torchs, self.base)
        self.before: dict[str, Tensor] = {}
        self.loss = 0.0
        self.got: Tensor | None = None
        self.rates: dict[str, Any] = {"lr": 0.0}
        """What a schedule sets; OneCycle cycles the betas as well."""
        self.base.register_step_pre_hook(self._look)

    def begin(self, batch: Tensor) -> None:
        """Compute plain torch's gradient of this rank's batch at the present weights."""
        import torch
        import torch.distributed as dist

        self.before = {n: p.detach().clone() for n, p in self.parameters.items()}
        leaves = {n: value.clone().requires_grad_() for n, value in self.before.items()}
        loss = torch.func.functional_call(self.engine.module, leaves, (batch,))
        gradients = torch.autograd.grad(loss.float() * self.scale, list(leaves.values()))
        for copy, gradient in zip(self.copies.values(), gradients, strict=True):
            whole = gradient.float()
            dist.all_reduce(whole)
            copy.grad = (whole / (self.scale * dist.get_world_size())).to(copy.dtype)
        self.loss, self.got = float(loss.detach()), None

    def facts(self, loss: float) -> dict[str, Any]:
        """What to record of the step since ``begin``; torch's optimizer takes the same step."""
        import torch
        import torch.distributed as dist

        gradients = [copy.grad.double() for copy in self.copies.values() if copy.grad is not None]
        norm = float(torch.stack([gradient.norm() for gradient in gradients]).norm())
        squares = torch.zeros((), dtype=torch.float64) if self.got is None else self.got
        reached = squares.float().to(self.engine.device)
        if self._sharded():
            dist.all_reduce(reached)
        for copy in self.copies.values():
            if copy.grad is not None and 0 < self.clipping < norm:
                copy.grad.mul_(self.clipping / norm)
        for group in self.torchs.param_groups:
            group.update(self.rates)
        self.torchs.step()
        return {
            "loss": api.named(loss),
            "reference_loss": api.named(self.loss),
            "gradient": api.named(norm),
            "got": api.named(float(reached.sqrt())),
            "scale": self.scale,
            "rate": self.rates["lr"],
            "aside": api.named(self._aside()),
        }

    def _look(self, *_: Any) -> None:
        import torch

        gradients = [p.grad for group in self.base.param_groups for p in group["params"]]
        squares = [
            gradient.double().square().sum() for gradient in gradients if gradient is not None
        ]
        self.got = torch.stack(squares).sum() if squares else None
        group = self.base.param_groups[0]
        self.rates = {"lr": float(group["lr"]), "betas": group["betas"]}

    def _sharded(self) -> bool:
        elements = sum(p.numel() for group in self.base.param_groups for p in group["params"])
        return bool(elements < sum(p.numel() for p in self.parameters.values()))

    def _aside(self) -> float:
        way, aside = 0.0, 0.0
        for name, parameter in self.parameters.items():
            expected = self.copies[name].detach().to(parameter.dtype).double()
            way += float((expected - self.before[name].double()).abs().sum())
            aside += float((parameter.detach().double() - expected).abs().sum())
        return aside / way if way else aside


def untrue(records: api.Records, unscaled_twice: bool = False) -> Iterator[str]:
    """Where the first steps differ from plain torch's; for each rank, the first difference.

    Steps are ignored from the first one on at which plain torch's gradient overflows as well.
    ``unscaled_twice``: gradients may be divided by the scale of the loss once too often.
    """
    clipping = records.params.gradient_clipping
    for rank in records.ranks:
        for step in records.of("begun", rank):
            if not api.finite(step["gradient"]):
                break
            fault = _fault(step, clipping, unscaled_twice)
            if fault:
                yield f"rank {rank}, step {step['step']}: {fault}"
                break


def _fault(step: api.Record, clipping: float, unscaled_twice: bool) -> str:
    unclipped = (step["gradient"] / over for over in (1, step["scale"]))
    expected, again = (min(norm, clipping) if clipping else norm for norm in unclipped)
    if not api.near(step["loss"], step["reference_loss"], share=TOLERANCE):
        return f"the loss is {step['loss']:.5g}, but plain torch has {step['reference_loss']:.5g}"
    if unscaled_twice and again < expected and api.near(step["got"], again, share=TOLERANCE):
        return ""
    if not api.near(step["got"], expected, share=TOLERANCE):
        return (
            f"the optimizer got a gradient of norm {step['got']:.4g}, where {expected:.4g} is right"
        )
    if not api.near(step["aside"], 0.0, within=ASIDE):
        return f"the weights are {step['aside']:.2g} of a step away from plain torch's"
    return ""
