"""Did each parameter get plain torch's gradient, and take the step that torch's optimizer takes?

At each step, a rank records of each parameter that it trains: how much of plain torch's gradient
its optimizer got, and how far the step was from the one that torch's optimizer takes with what it
got; and which weights are not their fp32 masters rounded. This holds for any optimizer, with or
without clipping. It shows that nothing but the documented symptom is wrong with a training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from harness.detectors import arithmetic

if TYPE_CHECKING:
    from torch import Tensor

Gradients = Mapping[str, "Tensor"]

TOLERANCE = 1e-2
"""How far (as a fraction) a loss, a gradient, or a step may be from the right one. Rounding to bf16
moves a value by up to 2**-9 of it."""

FLOOR = 1e-3
"""A gradient that is smaller than this part of the gradient of all parameters counts as that large:
where it would be 0 without rounding, its direction means nothing."""

LOSS, NORM = "the loss", "the gradient norm"
"""Names for what may be wrong besides parameters."""

FACTS: api.Facts = {
    "gradient": api.SIZE,
    "reference_loss": api.NUMBER,
    "got": api.by_name(api.many(api.NUMBER, 3), least=1),
    "strayed": api.by_name(api.SIZE, least=1),
    "stale": api.many(api.LINE),
}
"""What ``Watch.facts`` returns for the record of a step. That record also has ``loss`` and
``grad_norm`` (or null).

``gradient`` is the norm of plain torch's gradients on all ranks. ``got`` has three numbers for each
parameter: the norm of its gradient, how much of that the optimizer got, and the norm of what it got
in other directions. ``strayed`` is the distance from where torch's own step leads, as a part (0 to
1) of that step. ``stale`` names the weights that are not their masters rounded."""


@dataclass(frozen=True)
class Plain:
    """What plain torch computes for this rank's parameters."""

    loss: float
    norm: float
    """The norm of the gradients of all ranks, before any clipping."""
    gradients: Gradients


class Watch:
    """Watches the optimizer of a DeepSpeed engine, and its fp32 masters if it has any.

    ``make`` makes torch's optimizer of the same kind for copies of the parameters.
    """

    def __init__(self, engine: Any, make: Callable[[Iterable[Any]], Any]) -> None:
        import torch

        self.parameters = dict(engine.module.named_parameters())
        self.copies = {n: torch.nn.Parameter(v.clone()) for n, v in self._values().items()}
        self.torchs = make(self.copies.values())
        """Torch's own optimizer, over the copies."""
        self.before: Gradients = {}
        self.got: Gradients = {}
        base = getattr(engine.optimizer, "optimizer", engine.optimizer)
        as_made(self.torchs, base)
        base.register_step_pre_hook(self._look)

    def begin(self) -> None:
        """Start a step: keep the weights as they are before it."""
        self.before = {name: value.clone() for name, value in self._values().items()}
        self.got = {}

    def save(self, file: Path) -> None:
        """Save the state of torch's own optimizer, for a process that continues from here."""
        import torch

        torch.save(self.torchs.state_dict(), file)

    def load(self, file: Path) -> None:
        """Continue from what ``save`` wrote."""
        import torch

        self.torchs.load_state_dict(torch.load(file, weights_only=True))

    def facts(self, plain: Plain) -> dict[str, Any]:
        """What to record of the step that was taken since ``begin``."""
        import torch

        zeros = {name: torch.zeros_like(copy) for name, copy in self.copies.items()}
        gradients = {**zeros, **self.got}
        after = self._values()
        expected = self._step(gradients)
        return {
            "gradient": plain.norm,
            "reference_loss": plain.loss,
            "got": self.shares(plain.gradients),
            "strayed": {n: _strayed(self.before[n], after[n], expected[n]) for n in gradients},
            "stale": [
                n for n, p in self.parameters.items() if not torch.equal(p, after[n].to(p.dtype))
            ],
        }

    def shares(self, gradients: Gradients) -> dict[str, list[float]]:
        """How much of each of these gradients the optimizer got, as in ``got``."""
        return {
            name: _share(self.got.get(name, gradient.new_zeros(gradient.shape)), gradient)
            for name, gradient in gradients.items()
        }

    def _values(self) -> dict[str, Tensor]:
        from harness.detectors.state import master_copy

        values = {}
        for name, parameter in self.parameters.items():
            master = master_copy(parameter)
            values[name] = parameter.detach() if master is None else master
        return values

    def _look(self, *_: Any) -> None:
        buffers = {n: getattr(p, "_hp_grad", None) for n, p in self.parameters.items()}
        gradients = {
            n: p.grad if buffers[n] is None else buffers[n] for n, p in self.parameters.items()
        }
        self.got = {
            name: gradient.detach().float().reshape(self.copies[name].shape).clone()
            for name, gradient in gradients.items()
            if gradient is not None
        }

    def _step(self, gradients: Gradients) -> dict[str, Tensor]:
        """The weights after torch's own optimizer steps, from ``before``, with these gradients."""
        for name, copy in self.copies.items():
            copy.data.copy_(self.before[name])
            copy.grad = gradients[name].to(copy.dtype)
        self.torchs.step()
        return {name: copy.detach() for name, copy in self.copies.items()}


def as_made(torchs: Any, base: Any) -> None:
    """Repeat on torch's optimizer the empty steps that DeepSpeed's took when it was initialised."""
    import torch

    counts = (int(state["step"]) for state in base.state.values() if "step" in state)
    for _ in range(max(counts, default=0)):
        for group in torchs.param_groups:
            for copy in group["params"]:
                copy.grad = torch.zeros_like(copy)
        torchs.step()


def _share(actual: Tensor, gradient: Tensor) -> list[float]:
    """The gradient's norm, how much of it ``actual`` has, and the norm of the rest of
    ``actual``."""
    ours, plain = (each.detach().double().flatten() for each in (actual, gradient))
    projection = arithmetic.projection(ours, plain)
    share = (projection.right, projection.ratio if projection.right else 0.0, projection.beside)
    return [float(f"{each:.6g}") for each in share]


def _strayed(before: Tensor, after: Tensor, expected: Tensor) -> float:
    way, aside = (float((each.double() - expected.double()).norm()) for each in (before, after))
    return float(f"{aside / max(way, aside):.6g}") if aside else 0.0


@dataclass(frozen=True)
class Astray:
    """A parameter that did not take the step that it should have."""

    rank: int
    step: int
    name: str
    about: str

    def __str__(self) -> str:
        return f"rank {self.rank}, step {self.step}: {self.name} {self.about}"


def factor(step: api.Record, clipping: float) -> float:
    """The factor by which clipping to this norm should have multiplied all gradients of a step. A
    ``clipping`` of 0 is no clipping."""
    norm = step["gradient"]
    if step["grad_norm"] is not None:
        norm = step["grad_norm"]  # ``astray`` compares the two
    return float(min(1.0, clipping / norm)) if 0 < clipping < norm else 1.0


def gave(step: api.Record, share: Sequence[float], times: float) -> bool:
    """Whether ``share``, an entry of ``got``, is ``times`` the gradient of plain torch."""
    norm, ratio, aside = share
    away = math.hypot((ratio - times) * norm, aside)
    return api.near(away, 0.0, within=TOLERANCE * times * max(norm, FLOOR * step["gradient"]))


Excuse = Callable[[api.Record, str], bool]
"""Whether what a parameter got is the documented symptom, and so is not reported here."""


def astray(
    records: api.Records, clipping: float = 0.0, excused: Excuse = lambda step, name: False
) -> list[Astray]:
    """The parameters that did not take the right step, by rank and step; ``clipping`` is the
    greatest gradient norm, and 0 means no clipping."""
    strays = []
    normed = any(step["grad_norm"] is not None for step in records.of("step"))
    for step in records.of("step"):
        scale = factor(step, clipping)
        where = (step["rank"], step["step"])
        if normed and step["grad_norm"] is None:
            strays.append(Astray(*where, NORM, "is missing, though other steps have it"))
        for name, ours, torchs in (
            (LOSS, step["loss"], step["reference_loss"]),
            (NORM, step["grad_norm"], step["gradient"]),
        ):
            close = ours is None or api.near(ours, torchs, share=TOLERANCE)
            if not close and not excused(step, name):
                about = f"is {ours:.5g}, but plain torch has {torchs:.5g}"
                strays.append(Astray(*where, name, about))
        for name, share in step["got"].items():
            if not gave(step, share, scale) and not excused(step, name):
                strays.append(Astray(*where, name, _gradient(share, scale)))
        for name, part in step["strayed"].items():
            if not api.near(part, 0.0, within=TOLERANCE):
                about = f"is {part:.2g} of a step away from where torch's own step leads"
                strays.append(Astray(*where, name, about))
        strays += [Astray(*where, name, "is not its fp32 master rounded") for name in step["stale"]]
    return strays


def _gradient(share: Sequence[float], times: float) -> str:
    norm, ratio, aside = share
    besides = f" and {aside:.3g} of another direction" if aside > TOLERANCE * norm else ""
    return (
        f"got {ratio:.4g} times plain torch's gradient (norm {norm:.3g}){besides}, where "
        f"{times:.4g} is right"
    )


def finding(strays: Sequence[Astray], most: int = 3) -> api.Finding:
    """The finding that these steps are wrong; this is not a documented symptom."""
    remainder = f"and {len(strays) - most} more"
    return api.Finding(
        message="\n".join([*map(str, strays[:most]), *([remainder] if len(strays) > most else [])]),
        step=min(stray.step for stray in strays),
        parameters=tuple(dict.fromkeys(stray.name for stray in strays)),
        ranks=tuple(sorted({stray.rank for stray in strays})),
        documented=False,
    )
