"""BarlowTwinsLoss(gather_distributed=True) makes each gradient too small by the number of ranks.

The loss of Barlow Twins compares two views by the correlation of their features over the batch.
With ``gather_distributed=True`` the correlations of all ranks are added, so that the loss is that
of the batch of all ranks; it is right and the same on all ranks. But DDP's gradient is 1 / n of
that of one process: half of it on 2 ranks. SGD trains at 1 / n of the chosen learning rate; Adam
hides most of it.

Root cause: ``BarlowTwinsLoss.forward`` adds the correlations with ``torch.distributed.all_reduce``,
which autograd does not see. So each rank has the gradient of its own rows alone. These must be
added, but DDP averages them. Since 1.5.26 ``torch.distributed.nn.all_reduce`` is used, which passes
the gradients of all ranks on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import whole_batch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(32, least=16, multiple=16, about="in the batch of all ranks")
    steps: int = api.knob(3, least=1, about="of training")


SCENARIO = api.Scenario(
    report=(
        "https://github.com/lightly-ai/lightly/issues/1977",
        "https://github.com/lightly-ai/lightly/pull/1980",
    ),
    fix="https://github.com/lightly-ai/lightly/pull/1980",
    symptom="under DDP the gradient is off by 1 / world_size",
    trigger="BarlowTwinsLoss(gather_distributed=True), DDP and several ranks",
    remedy="multiply the loss by the number of ranks",
    pins={"lightly": "1.5.25"},
    releases="lightly>=1.5.20",  # older ones normalise in a way that `alone` cannot repeat
    harm="ruins training",
    visibility="silent",
    settings={
        "ranks": api.above(1),
        "code": api.by_code("BarlowTwinsLoss has gather_distributed=True"),
    },
    seen={"lightly.loss.barlow_twins_loss.BarlowTwinsLoss": {"gather_distributed": True}},
    files=("lightly/loss/barlow_twins_loss.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("1.5.26"),
        "control": api.control("1.5.25 on one rank", ranks=1),
        "four_ranks": api.expect_symptom(about="1.5.25 on four ranks", ranks=4),
    },
)
oracle = whole_batch.Averaged()


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with the loss; each rank normalises its own rows."""
    import torch
    import torch.distributed as dist
    from lightly.loss import BarlowTwinsLoss

    def of_views(loss: Any) -> whole_batch.Loss:
        return lambda outputs, labels: loss(*outputs.unbind(1))

    dist.init_process_group(ctx.lane.backend)
    plain = of_views(BarlowTwinsLoss())

    def alone(outputs: Tensor, labels: Tensor) -> Tensor:
        # The loss normalises features over its rows. It does that with each rank's rows: here that
        # is done before, and once more over all rows it changes nothing.
        parts = outputs.chunk(ctx.world_size)
        normal = [torch.stack([_normal(v) for v in part.unbind(1)], 1) for part in parts]
        return plain(torch.cat(normal), labels)

    oracle.train(ctx, of_views(BarlowTwinsLoss(gather_distributed=True)), alone)


def _normal(rows: Tensor) -> Tensor:
    import torch

    return torch.nn.functional.batch_norm(rows, None, None, training=True)


exercised = whole_batch.several
