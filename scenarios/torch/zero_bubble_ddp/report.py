"""Two replicas of a pipeline with a zero-bubble schedule and DDP: are gradients averaged?

Needs torch from 2.6 on, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel


def gradients(rank: int) -> Any:
    """The gradients of both stages on each rank. Each rank has a whole pipeline of two stages with
    weights of 1; the rows of rank 0 have the gradient 1, the rows of rank 1 have 3."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29725", rank=rank, world_size=2)
    alone, _ = torch.distributed.new_subgroups(1)
    models, stages = [torch.nn.Linear(1, 1, bias=False) for _ in range(2)], []
    for number, model in enumerate(models):
        torch.nn.init.ones_(model.weight)
        ddp = DistributedDataParallel(model)  # over both ranks
        stages.append(PipelineStage(ddp, number, 2, torch.device("cpu"), group=alone))
    schedule = ScheduleInterleavedZeroBubble(stages, 4, lambda output, _: output.mean())
    rows, parts = torch.full((4, 1), 1.0 + 2 * rank), [None, None]
    schedule.step(rows, target=rows)
    torch.distributed.all_gather_object(parts, [model.weight.grad.item() for model in models])
    torch.distributed.barrier()
    return parts


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    print("torch", torch.__version__)
    for stage, replicas in enumerate(zip(*gradients(1), strict=True)):
        print(f"stage {stage}: the replicas have the gradients {replicas}, right: 2 and 2")
    print("WRONG: they are not averaged" if replicas != (2, 2) else "right: each has the mean")
    raise SystemExit(3 if replicas != (2, 2) else 0)
