"""SIGReg(gather_distributed=True) makes each gradient too small by the number of ranks.

SIGReg, the regularizer of LeJEPA, compares the distribution of the embeddings with a normal one.
With ``gather_distributed=True`` it takes the embeddings of all ranks; its value is right and the
same on all ranks. But DDP's gradient of it is 1 / n of that of one process: half of it on 2 ranks.
SIGReg is added to another loss, whose gradient is right. So the regularizer has 1 / n of the weight
that was chosen for it, and Adam does not hide that.

Root cause: ``_compute_cf_error_at_each_frequency`` adds the ranks' sums with
``torch.distributed.all_reduce``, which autograd does not see. So each rank has the gradient of its
own rows alone. These must be added, but DDP averages them. Since 1.5.24
``torch.distributed.nn.all_reduce`` is used, which passes the gradients of all ranks on.
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
    rows: int = api.knob(16, least=8, multiple=8, about="in the batch of all ranks")
    steps: int = api.knob(3, least=1, about="of training")


SCENARIO = api.Scenario(
    report=(
        "https://github.com/lightly-ai/lightly/issues/1920",
        "https://github.com/lightly-ai/lightly/pull/1923",
    ),
    fix="https://github.com/lightly-ai/lightly/pull/1923",
    symptom="under DDP the gradient of SIGReg is too small, by the number of ranks",
    trigger="SIGReg(gather_distributed=True), DDP and several ranks",
    remedy="multiply SIGReg's value by the number of ranks",
    pins={"lightly": "1.5.23"},
    releases="lightly>=1.5.23",
    absent=(api.Absent("lightly<1.5.23", "the loss came with 1.5.23"),),
    harm="ruins training",
    visibility="silent",
    settings={"ranks": api.above(1), "code": api.by_code("SIGReg has gather_distributed=True")},
    seen={"lightly.loss.lejepa_loss.SIGReg": {"gather_distributed": True}},
    files=("lightly/loss/lejepa_loss.py",),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("1.5.24"),
        "control": api.control("1.5.23 on one rank", ranks=1),
        "four_ranks": api.expect_symptom(about="1.5.23 on four ranks", ranks=4),
    },
)
oracle = whole_batch.Averaged()


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with SIGReg alone."""
    import torch
    import torch.distributed as dist
    from lightly.loss.lejepa_loss import SIGReg

    dist.init_process_group(ctx.lane.backend)

    def of(loss: Any) -> whole_batch.Loss:
        loss = loss.to(ctx.device)

        def call(outputs: Tensor, labels: Tensor) -> Tensor:
            torch.manual_seed(ctx.seed)  # it compares along directions that it draws each time
            penalty: Tensor = loss(outputs.flatten(0, 1))
            return penalty

        return call

    oracle.train(ctx, of(SIGReg(gather_distributed=True)), of(SIGReg()))


exercised = whole_batch.several
