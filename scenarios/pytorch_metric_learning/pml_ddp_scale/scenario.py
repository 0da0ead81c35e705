"""Under DDP, DistributedLossWrapper divides the gradient by the number of ranks.

The wrapper gathers the embeddings of all ranks, so that each of them is compared with all others.
The loss that it returns is right and the same on all ranks. But DDP's gradient is 1 / n of that of
one process with the whole batch: half of it on 2 ranks. SGD then trains at 1 / n of the chosen
learning rate, and weight decay and gradient clipping have another weight beside the loss. Adam
hides most of it. Nothing shows the bug but a comparison with one process.

Root cause: ``torch.distributed.all_gather`` passes no gradient on, so on each rank only the rank's
own embeddings have one. The ranks' gradients must be added, but DDP averages them. Since 1.0.0
``DistributedLossWrapper.forward`` multiplies the loss by the number of ranks. The gradient is then
right, and the reported loss is n times too large.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import whole_batch
from scenarios.pytorch_metric_learning import _wrapped as wrapped


@dataclass
class Params(api.Knobs):
    loss: str = api.knob("ntxent", choices=tuple(wrapped.LOSSES), about="that is wrapped")
    rows: int = api.knob(16, least=8, multiple=8, about="in the batch of all ranks")
    steps: int = api.knob(3, least=1, about="of training")


SCENARIO = api.Scenario(
    report=("https://github.com/KevinMusgrave/pytorch-metric-learning/issues/363",),
    fix="https://github.com/KevinMusgrave/pytorch-metric-learning/issues/363",
    symptom="the loss should be multiplied by the number of ranks, because DDP averages gradients",
    trigger="DistributedLossWrapper, DDP and several ranks",
    remedy="multiply the wrapped loss by the number of ranks",
    pins={"pytorch-metric-learning": "0.9.99"},
    releases="pytorch-metric-learning>=0.9.92",
    absent=(api.Absent("pytorch-metric-learning<0.9.92", "the wrapper came with 0.9.92"),),
    harm="ruins training",
    visibility="silent",
    settings={"ranks": api.above(1), "code": api.by_code("DistributedLossWrapper is used")},
    seen={"pytorch_metric_learning.utils.distributed.DistributedLossWrapper": {}},
    files=(wrapped.FILE,),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("1.0.0"),
        "control": api.control("0.9.99 on one rank", ranks=1),
        "triplet": api.expect_symptom(
            about="0.9.99 with TripletMarginLoss", params={"loss": "triplet"}
        ),
        "four_ranks": api.expect_symptom(about="0.9.99 on four ranks", ranks=4),
    },
)
oracle = whole_batch.Averaged(wrapped.scales)


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with the wrapped loss."""
    wrapped.train(ctx, oracle)


exercised = whole_batch.several
