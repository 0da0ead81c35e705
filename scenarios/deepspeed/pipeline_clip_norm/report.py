"""One step of SGD with rate 1 and gradient_clipping 0.1, with 1 and 2 stages: is its norm 0.1?

Needs torch and deepspeed, and no GPU. The exit code is 1 if the bug is there."""

import math
import os
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}

import deepspeed
import torch
from torch import multiprocessing, nn


def train(rank: int, stages: int, folder: str) -> None:
    """Write the norm of what this stage's weights moved."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(stages))
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    layers, (x, y) = [nn.Linear(8, 8) for _ in range(4)], torch.randn(2, 4, 8)
    model = deepspeed.PipelineModule(layers, stages, loss_fn=nn.MSELoss())
    before = nn.utils.parameters_to_vector(model.parameters()).detach()
    config = {"train_batch_size": 4, "gradient_clipping": 0.1}
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    engine.train_batch(iter([(x, 9 * y)]))
    moved = nn.utils.parameters_to_vector(model.parameters()).detach() - before
    torch.save(moved.norm(), f"{folder}/{stages}_{rank}.pt")


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    for n in (1, 2):
        multiprocessing.spawn(train, (n, folder), n)  # type: ignore[attr-defined]
        norm = math.hypot(*(torch.load(f"{folder}/{n}_{rank}.pt") for rank in range(n)))
        print(f"deepspeed {deepspeed.__version__}, {n} stages: the step has the norm {norm:.4f}")
    print("WRONG: the limit is 0.1" if norm > 0.101 else "right: it is clipped to 0.1")
    raise SystemExit(norm > 0.101)
