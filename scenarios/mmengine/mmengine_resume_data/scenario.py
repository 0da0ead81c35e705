"""A resumed training by iterations reads its data from the beginning again.

This affected all trainings with mmengine's ``IterBasedTrainLoop``, the loop of mmsegmentation's and
most of mmagic's configurations, that were stopped and resumed. The weights, the optimizer and the
iteration are restored, but the data is not: the first batch after a resume is the first of the
whole training. So the rows before the stop come again, and as many at the end of the training never
come. A training that is stopped often, as on a cluster with short jobs, sees the same part of its
data all the time. No error is raised, and the loss goes on as before.

Root cause: the loop makes the iterator over its loader when it is built. It never moves it to the
iteration that a checkpoint has restored. Since 0.10.3 ``run`` first draws as many batches as were
trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, rows, stops


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.before >= params.rows // 4:
        raise ValueError("before must be less than rows / 4, the batches of a rank in an epoch")


BATCH = 2
"""Rows of a batch of a rank."""


def from_the_beginning(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """On each rank, the rows after the resume are those of the beginning of the run, in the same
    order. A run without a stop has each row once in each epoch."""
    whole, after = rows.by_epoch(records), rows.by_epoch(records, "after")
    complete = all(
        sorted(rows.together(ranks)) == list(range(records.params.rows)) for ranks in whole.values()
    )
    again = [_all_of(after, rank) for rank in range(len(records.ranks))]
    beginnings = [_all_of(whole, rank)[: len(seen)] for rank, seen in enumerate(again)]
    return complete and again == beginnings


def _all_of(by_epoch: dict[int, rows.Ranks], rank: int) -> list[int]:
    return rows.together([ranks[rank] for ranks in by_epoch.values()])


oracle = stops.Stopped(
    from_the_beginning, stop=lambda params: int(params.before > 0), checks=(epochs.other_lengths,)
)


def run(ctx: api.Context) -> None:
    """Train without a stop; train some batches, save, and resume in a new runner."""
    import torch.distributed as dist

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    length = p.rows // ctx.world_size // BATCH
    whole = _trained(ctx, "whole", length * p.epochs)
    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=rows.together(whole[length * (epoch - 1) : length * epoch]))
    if not p.before:
        return
    ctx.record("before", 1, seen=rows.together(_trained(ctx, "stopped", p.before)))
    after = _trained(ctx, "stopped", length * p.epochs, resume=True)
    for epoch in api.each(p.epochs):
        start, end = max(length * (epoch - 1) - p.before, 0), length * epoch - p.before
        ctx.record("after", epoch, seen=rows.together(after[start:end]))


def _trained(ctx: api.Context, name: str, iterations: int, resume: bool = False) -> list[list[int]]:
    """Train with mmengine's runner until an iteration; the rows of each batch of this rank."""
    from mmengine.model import MMDistributedDataParallel
    from mmengine.runner import Runner

    model, p = _model(), ctx.params
    runner = Runner(
        MMDistributedDataParallel(model.to(ctx.device)),
        work_dir=str(ctx.folder / name),
        train_dataloader={
            "batch_size": BATCH,
            "num_workers": 0,
            "dataset": [{"inputs": row} for row in range(p.rows)],
            "sampler": {"type": "DefaultSampler", "shuffle": p.shuffle, "seed": ctx.seed},
        },
        train_cfg={"by_epoch": False, "max_iters": iterations},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": p.lr}},
        default_hooks={
            "checkpoint": {"type": "CheckpointHook", "interval": iterations, "by_epoch": False}
        },
        resume=resume,
        launcher="pytorch",
        randomness={"seed": ctx.seed},
        experiment_name=f"{name}_{iterations}",
        log_level="ERROR",
    )
    runner.train()
    return model.batches


def _model() -> Any:
    """A linear map that keeps the rows of its batches."""
    import torch
    from mmengine.model import BaseModel

    class Linear(BaseModel):  # type: ignore[misc, no-any-unimported, unused-ignore]
        """It takes a batch of numbers of rows."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)
            self.batches: list[list[int]] = []

        def forward(self, inputs: Any, mode: str = "loss") -> dict[str, Any]:
            self.batches.append([int(row) for row in inputs])
            x = torch.as_tensor(inputs, dtype=torch.float32, device=self.linear.weight.device)
            return {"loss": self.linear(x.reshape(-1, 1)).square().mean()}

    return Linear()


def exercised(records: api.Records) -> api.Exercise:
    """The run was stopped and resumed."""
    before, after = records.params.before, rows.by_epoch(records, "after")
    return api.Exercise.of(bool(after), f"resumed after {before} batches of a rank", "no resume")
