"""Did each parameter get the gradient that plain torch has, and take torch's own step with it?

A rank writes down, at each step and of each parameter that it trains: how much of plain torch's
gradient its optimizer got; how far the step was from the one that torch's optimizer takes with what
it got; and which weights are not their fp32 masters rounded. That holds for any optimizer, clipped
or not, and says of a training what a documented symptom alone does not: nothing else is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.facts.numbers import near
from harness.facts.shapes import LINE, NUMBER, SIZE, Facts, by_name, many
from harness.spec import Finding, Record, Records

if TYPE_CHECKING:
    from torch import Tensor

Gradients = Mapping[str, "Tensor"]

TOLERANCE = 1e-2
"""How far (as a fraction) a loss, a gradient, or a step may be from the right one: rounding to bf16
moves a value by up to 2**-9 of it."""

FLOOR = 1e-3
"""A gradient that is less than this part of all parameters' is compared with that much of theirs:
where it would be 0 but for rounding, its direction says nothing."""

NORM_SHARE = 1e-3
"""How far (as a fraction) the norm of all gradients may be from that of their norms: these are
rounded to six digits."""

LOSS, NORM, WHOLE = "the loss", "the gradient norm", "the gradient of all parameters"
"""What is told astray besides parameters."""

FACTS: Facts = {
    "gradient": SIZE,
    "reference_loss": NUMBER,
    "got": by_name(many(NUMBER, 3), least=1),
    "strayed": by_name(SIZE, least=1),
    "stale": many(LINE),
}
"""What ``Watch.facts`` has for the record of a step, which also has ``loss``, ``grad_norm`` (or
null) and ``clipping``.

``gradient`` is the norm of plain torch's gradients of all ranks, ``got`` has for each parameter the
norm of its gradient, how much of that the optimizer got, and the norm of what it got besides.
``strayed`` is the distance to torch's own step as a part (0 to 1) of that step, ``stale`` names the
weights that are not their masters rounded."""


@dataclass(frozen=True)
class Plain:
    """What plain torch has for this rank's parameters."""

    loss: float
    norm: float
    """Of the gradients of all ranks, before any clipping."""
    gradients: Gradients


class Watch:
    """Watches the optimizer of an engine of DeepSpeed's: of fp32 masters where there are any.

    ``make`` makes torch's optimizer of the same kind, for copies of them.
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
        """Begin a step: the weights are those from before it."""
        self.before = {name: value.clone() for name, value in self._values().items()}
        self.got = {}

    def save(self, file: Path) -> None:
        """Write down the state of torch's own optimizer, for a process that goes on from here."""
        import torch

        torch.save(self.torchs.state_dict(), file)

    def load(self, file: Path) -> None:
        """Go on from what ``save`` wrote."""
        import torch

        self.torchs.load_state_dict(torch.load(file, weights_only=True))

    def facts(self, plain: Plain) -> dict[str, Any]:
        """What to record of the step that was taken since ``begin``."""
        import torch

        zeros = {name: torch.zeros_like(copy) for name, copy in self.copies.items()}
        got = {**zeros, **self.got}
        after = self._values()
        expected = self._step(got)
        return {
            "gradient": plain.norm,
            "reference_loss": plain.loss,
            "got": self.shares(plain.gradients),
            "strayed": {n: _strayed(self.before[n], after[n], expected[n]) for n in got},
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
        used = {n: p.grad if buffers[n] is None else buffers[n] for n, p in self.parameters.items()}
        self.got = {
            name: gradient.detach().float().reshape(self.copies[name].shape).clone()
            for name, gradient in used.items()
            if gradient is not None
        }

    def _step(self, gradients: Gradients) -> dict[str, Tensor]:
        """Where torch's own optimizer gets to with these gradients, from before the step."""
        for name, copy in self.copies.items():
            copy.data.copy_(self.before[name])
            copy.grad = gradients[name].to(copy.dtype)
        self.torchs.step()
        return {name: copy.detach() for name, copy in self.copies.items()}


def as_made(torchs: Any, base: Any) -> None:
    """Have torch's optimizer take the empty steps that some of DeepSpeed's take when made."""
    import torch

    counts = (int(state["step"]) for state in base.state.values() if "step" in state)
    for _ in range(max(counts, default=0)):
        for group in torchs.param_groups:
            for copy in group["params"]:
                copy.grad = torch.zeros_like(copy)
        torchs.step()


def _share(got: Tensor, gradient: Tensor) -> list[float]:
    """The gradient's norm, how many times it was got, and the norm of what was got besides."""
    ours, plain = (each.detach().double().flatten() for each in (got, gradient))
    square = float(plain @ plain)
    ratio = float(ours @ plain) / square if square else 0.0
    share = (math.sqrt(square), ratio, float((ours - ratio * plain).norm()))
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


def factor(step: Record) -> float:
    """What clipping should have multiplied all gradients of a step with."""
    clipping, norm = step["clipping"], step["gradient"]
    if step["grad_norm"] is not None:
        norm = step["grad_norm"]  # ``astray`` holds it against the other
    return float(min(1.0, clipping / norm)) if 0 < clipping < norm else 1.0


def gave(step: Record, share: Sequence[float], times: float) -> bool:
    """Whether ``share``, an entry of ``got``, is ``times`` the gradient that plain torch has."""
    norm, ratio, aside = share
    away = math.hypot((ratio - times) * norm, aside)
    return near(away, 0.0, within=TOLERANCE * times * max(norm, FLOOR * step["gradient"]))


Excuse = Callable[[Record, str], bool]
"""Whether what a parameter got is a documented symptom, and so not to be told here."""


def astray(records: Records, excused: Excuse = lambda step, name: False) -> list[Astray]:
    """The parameters that did not take the step that they should have, by rank and step."""
    found = list(_untold(records))
    for step in records.of("step"):
        where = (step["rank"], step["step"])
        for name, ours, torchs in (
            (LOSS, step["loss"], step["reference_loss"]),
            (NORM, step["grad_norm"], step["gradient"]),
        ):
            right = ours is None or near(ours, torchs, share=TOLERANCE)
            if not right and not excused(step, name):
                told = f"is {ours:.5g}, where plain torch has {torchs:.5g}"
                found.append(Astray(*where, name, told))
        for name, share in step["got"].items():
            if not gave(step, share, factor(step)) and not excused(step, name):
                found.append(Astray(*where, name, _gradient(share, factor(step))))
        for name, part in step["strayed"].items():
            if not near(part, 0.0, within=TOLERANCE):
                told = f"was {part:.2g} of a step away from where torch's own would have led"
                found.append(Astray(*where, name, told))
        found += [Astray(*where, name, "is not its fp32 master rounded") for name in step["stale"]]
    return found


def miscounted(records: Records, counted: Callable[[Record, str], bool]) -> Iterator[Astray]:
    """The steps whose ``gradient`` is not the norm of the parameters' gradients, on all ranks: of
    those that ``counted`` says that a rank counts. What is compared has its tolerance from it."""
    parts: dict[tuple[str, int], list[float]] = {}
    for step in records.of("step"):
        norms = [share[0] for name, share in step["got"].items() if counted(step, name)]
        parts.setdefault(_moment(step), []).extend(norms)
    for step in records.of("step"):
        norm = math.hypot(*parts[_moment(step)])
        if not near(step["gradient"], norm, share=NORM_SHARE):
            told = (
                f"has the norm {step['gradient']:.5g}, where its parts on all ranks have {norm:.5g}"
            )
            yield Astray(step["rank"], step["step"], WHOLE, told)


def _moment(step: Record) -> tuple[str, int]:
    return step.get("launch", ""), step["step"]


def _untold(records: Records) -> Iterator[Astray]:
    """The parameters that are not told of in each step of a rank, in ``got`` as in ``strayed``; and
    the gradient norm, where some steps have one and some have none."""
    normed = [step["grad_norm"] is not None for step in records.of("step")]
    for rank in records.ranks:
        steps = records.of("step", rank)
        for step in steps:
            where, names = (rank, step["step"]), set(steps[0]["got"])
            for name in sorted(names ^ set(step["got"]) | names ^ set(step["strayed"])):
                yield Astray(*where, name, "is not told of in each step")
            for name in sorted(set(step["stale"]) - names):
                yield Astray(*where, name, "is no parameter of this rank")
            if step["grad_norm"] is None and any(normed):
                yield Astray(*where, NORM, "is not told of, as it is elsewhere")


def _gradient(share: Sequence[float], times: float) -> str:
    norm, ratio, aside = share
    besides = f" and {aside:.3g} of another direction" if aside > TOLERANCE * norm else ""
    return (
        f"got {ratio:.4g} times the gradient that plain torch has (norm {norm:.3g}){besides}, "
        f"where {times:.4g} is right"
    )


def finding(wrong: Sequence[Astray], most: int = 3) -> Finding:
    """The finding of these, which no report documents."""
    rest = f"and {len(wrong) - most} more like these"
    return Finding(
        message="\n".join([*map(str, wrong[:most]), *([rest] if len(wrong) > most else [])]),
        step=min(one.step for one in wrong),
        parameters=tuple(dict.fromkeys(one.name for one in wrong)),
        ranks=tuple(sorted({one.rank for one in wrong})),
        documented=False,
    )
