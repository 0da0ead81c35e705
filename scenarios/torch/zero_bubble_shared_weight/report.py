"""Use a weight twice in each stage of a zero-bubble pipeline: are the gradients right?

Needs torch from 2.6 on, and no GPU. The exit code is 3 if the bug is there."""

from typing import Any

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleInterleavedZeroBubble
from torch.multiprocessing.spawn import spawn


class Twice(torch.nn.Linear):  # two maps with one weight, which is 1
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(super().forward(inputs))


rows = torch.ones(4, 1)
blocks: Any = [Twice(1, 1, bias=False) for _ in range(4)]
for block in blocks:
    torch.nn.init.ones_(block.weight)


def gradients(rank: int) -> list[float]:
    """The gradients of this rank's two stages. The loss is the mean output."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29726", rank=rank, world_size=2)
    stages = [PipelineStage(blocks[n], n, 4, torch.device("cpu")) for n in (rank, rank + 2)]
    schedule = ScheduleInterleavedZeroBubble(stages, 4, lambda output, _: output.mean())
    schedule.step(rows, target=rows)
    torch.distributed.barrier()
    return [block.weight.grad.item() for block in blocks[rank::2]]


if __name__ == "__main__":
    spawn(gradients, join=False, daemon=True)  # rank 0
    pair = gradients(1)
    (expected,) = torch.autograd.grad(torch.nn.Sequential(*blocks)(rows).mean(), blocks[1].weight)
    print(f"torch {torch.__version__}: two stages have {pair}, right for each is {expected.item()}")
    print("WRONG: a use counts twice" if pair[0] != expected else "right: each use counts once")
    raise SystemExit(3 if pair != [expected, expected] else 0)
