"""Under tensor parallelism, each rank trains torchtitan's router with its own part of the gradient.

This affected mixtures of experts on several tensor-parallel ranks: DeepSeek-V3, Qwen3 and gpt-oss,
whose outputs of the experts are weighted by the router's scores. Each rank computes a part of these
outputs, so it gets a part of the gradient of the scores. Nobody adds the parts up. Each rank has a
copy of the router's weights, and the copies part with the first step. From then on the ranks send
the same token to different experts. The loss of the first step is right, and it falls.

Root cause: the plan marks the router's scores as replicated when it turns them from a DTensor into
the local tensor of each rank. So the gradient that comes back counts as the whole one on each rank.
It must be marked as a part. With the scores applied before the experts, as in Llama 4, the gradient
is whole: there the experts themselves sum it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from harness.bugs import api
from scenarios.common import features

if TYPE_CHECKING:
    from torch import Tensor

GATE = "router.gate.weight"
CLOSE = 0.01
"""How far (as a fraction) a gradient may be from another: from 0.3.0 on, experts compute in bf16,
and the sum of two rounded halves is up to 0.003 from the rounded whole."""


@dataclass(frozen=True)
class Step(features.Step):
    apart: Annotated[float, api.alike(api.SIZE)]
    """The greatest difference between the router's gradients of any two ranks."""

    @property
    def off(self) -> dict[str, float]:
        """How far the gradients of parameters are off, if they are wrong."""
        return {name: off for name, (_, off, _) in self.gradients.items() if off > CLOSE}


@dataclass(frozen=True)
class Router(features.Feature):
    """The oracle: each rank has a router, and only that may be wrong."""

    step: Any = Step
    reason: str = (
        "the router's gradients of the ranks add up to the right one: each rank has its part alone"
    )
    checks: Sequence[api.Check] = ()

    def plan(self, at: api.Position) -> api.Plan:
        """One step, with the gradient of each parameter, which the ranks may not share."""
        return {"step": api.Kind(Step.shapes(gradients=features.COMPARED), (1,))}

    def documented(self, step: Any, _: api.Records) -> bool:
        """Each rank has its own part of the gradient of the router, and all of the others."""
        away = step.gradients[GATE][2]
        return bool(step.apart > 0 and away <= CLOSE and set(step.off) <= {GATE})


oracle = Router()


def run(ctx: api.Context) -> None:
    """Differentiate a layer of experts that is split over the ranks, beside the whole layer."""
    import torch
    import torch.distributed as dist

    from scenarios.common import unreduced
    from scenarios.torchtitan.titan_router_unsummed import layers

    dist.init_process_group(ctx.lane.backend)
    torch.manual_seed(ctx.seed)
    layer = layers.layer(ctx)
    shape = (ctx.params.rows, ctx.params.length, layers.WIDTH)
    tokens, targets = (torch.randn(shape, device=ctx.device) for _ in range(2))

    def loss(outputs: Tensor) -> Tensor:
        return (outputs - targets).square().mean()

    expected = features.of_losses(layer, [loss(layer(tokens))])
    split, outputs = layers.split(ctx, layer, tokens)
    of_split = loss(outputs)
    of_split.backward()
    actual = {name: layers.whole(part) for name, part in features.gradients(split).items()}
    copies = unreduced.of_all_ranks(actual[GATE])
    others = sum(copy for rank, copy in enumerate(copies) if rank != ctx.rank)
    documented = {**expected, GATE: expected[GATE] - others}
    apart = unreduced.apart({GATE: actual[GATE]})
    features.record(ctx, 1, of_split, actual, expected, documented, apart=apart)
