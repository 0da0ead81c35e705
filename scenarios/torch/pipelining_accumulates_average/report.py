"""Call schedule.step() of a pipeline twice before the optimizer: is the gradient the calls' sum?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.multiprocessing.spawn import spawn


def accumulated(rank: int) -> list[float]:
    """The gradient of a stage with weight 1 after each of two batches; the loss is the mean."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29724", rank=rank, world_size=2)
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    stage = PipelineStage(model, rank, 2, torch.device("cpu"))
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda output, _: output.mean())
    history = []
    for gradient in (1.0, 3.0):
        rows = torch.full((8, 1), gradient)
        schedule.step(rows, target=rows)
        history.append(model.weight.grad.item())
    torch.distributed.barrier()
    return history


if __name__ == "__main__":
    spawn(accumulated, join=False, daemon=True)  # rank 0
    once, both = accumulated(1)
    print(f"torch {torch.__version__}: two calls of a schedule with 4 micro-batches")
    print(f"after a batch with the gradient 1: {once:g}")
    print(f"after a further one with the gradient 3: {both:g}, right: 4")
    print("WRONG: it is not the sum" if both != 4 else "right: it is the sum")
    raise SystemExit(3 if both != 4 else 0)
