"""Did a kernel compute what plain torch computes, forwards and backwards?

A scenario calls upstream's kernel, and plain torch twice on the same inputs: as it should be, and
with the fault that the report describes. A distance from a result is a part of its norm, or of the
norm of the right one if that is greater. Triton's kernels round products of matrices to TF32, so
each is off by up to 1e-3, and a difference of such products by more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from harness.bugs import api
from scenarios.common.gradient import Gradient

if TYPE_CHECKING:
    from torch import Tensor

CLOSE = 3e-2
"""The greatest distance of results that count as equal."""
OUTPUT = "output"

Results = Mapping[str, "Tensor"]
"""The output, and the gradient of each input by the name of the input."""
Distances = Annotated[dict[str, float], api.by_name(api.SIZE, least=1)]


@dataclass(frozen=True)
class Step(api.Entry):
    """The results of a kernel, beside those of plain torch."""

    off: Distances
    """The distance of each result from the right one."""
    off_documented: Distances
    """The distance of each result from the one that the documented fault gives."""

    @property
    def wrong(self) -> dict[str, float]:
        """The results that are not right, with their distances."""
        return {name: off for name, off in self.off.items() if off > CLOSE}


def results(
    function: Callable[..., Tensor], inputs: Mapping[str, Tensor], gradient: Tensor
) -> Results:
    """The output of a function of these inputs, and their gradients if the output has this one."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    output = function(**leaves)
    output.backward(gradient)
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    return {OUTPUT: output.detach(), **gradients}


def record(
    ctx: api.Context, step: int, computed: Results, right: Results, documented: Results
) -> None:
    """Record how far a kernel's results are from the right ones and from the documented ones.

    ``documented`` has only those that the fault changes. ValueError: a gradient is missing.
    """
    if computed.keys() != right.keys():
        raise ValueError(f"the kernel gave {', '.join(computed)}, plain torch {', '.join(right)}")
    distances = {
        fact: {name: _distance(computed[name], of[name], right[name]) for name in right}
        for fact, of in (("off", right), ("off_documented", {**right, **documented}))
    }
    ctx.record("step", step, **distances)


def random(ctx: api.Context, step: int, **sizes: Sequence[int]) -> dict[str, Tensor]:
    """Normally distributed tensors, the same on every device, other ones in each step."""
    import torch

    generator = torch.Generator().manual_seed(ctx.seed + 1000 * step)
    return {
        name: torch.randn(*size, generator=generator).to(ctx.device) for name, size in sizes.items()
    }


def keep_one_configuration(package: str) -> None:
    """Keep the first of the configurations that each autotuned kernel of a package may have.

    They differ in speed only: to compile and to time up to 108 of them takes minutes. Call this
    after the import of the kernels.
    """
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == package:
            for kernel in list(vars(module).values()):
                while hasattr(kernel, "fn"):  # decorators of Triton, around the function
                    if hasattr(kernel, "configs"):
                        kernel.configs = kernel.configs[:1]
                    kernel = kernel.fn


def _distance(computed: Tensor, reference: Tensor, right: Tensor) -> float:
    apart = (computed.double() - reference.double()).norm()
    return float(apart) / (max(float(of.double().norm()) for of in (reference, right)) or 1.0)


def forward_alarm(records: api.Records) -> dict[str, bool]:
    """A test of the forward pass alone does not see the gradients."""
    steps = records.typed(Step)
    return {"the output differs from plain torch's": any(OUTPUT in step.wrong for step in steps)}


first_step = api.bars(
    "How far the results of the first step are from plain torch's",
    "without the bug each result is plain torch's, so that its distance is 0",
    lambda records: records.of("step", 0)[0]["off"].items(),
    "of the norm of plain torch's",
    limits={"right": 0.0},
)


@dataclass(frozen=True)
class Kernel(Gradient[Step]):
    """The oracle of scenarios that compare a kernel with plain torch.

    It needs the parameter ``steps``, and ``record`` for each of them."""

    documented: Callable[..., Results]
    """What the fault gives, in plain torch. Its docstring is the symptom on the bug's page."""
    reason: str = ""
    checks: Sequence[api.Check] = (forward_alarm,)
    step = Step
    unit = "of the norm of plain torch's result"
    picture: api.Pictures = first_step

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """Each step, with the distances of all results."""
        return {"step": api.Kind(Step.shapes(), api.each(at.params.steps))}

    def is_right(self, step: Step, records: api.Records) -> bool:
        return not step.wrong

    def is_documented(self, step: Step, records: api.Records) -> bool:
        return max(step.off_documented.values()) <= CLOSE

    def error(self, step: Step, records: api.Records) -> float:
        return max(step.off.values())

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterable[str]:
        first, total = wrong_steps[0], records.params.steps
        off = ", ".join(f"{name} by {off:.3g}" for name, off in first.wrong.items())
        right_results = ", ".join(name for name in first.off if name not in first.wrong)
        yield (
            f"{len({step.step for step in wrong_steps})} of {total} steps: results differ from "
            f"plain torch's, in step {first.step} {off} of its norm"
            + (f"; right: {right_results}" if right_results else "")
        )
