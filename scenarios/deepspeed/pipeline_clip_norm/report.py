"""One step of SGD with rate 1 and gradient_clipping 0.1, with 1 and 2 stages: is its norm 0.1?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29541"}

import deepspeed
import torch
from deepspeed.pipe import PipelineModule, TiedLayerSpec
from torch import multiprocessing, nn


def train(rank: int, stages: int, tied: bool, folder: str) -> None:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(stages))
    deepspeed.init_distributed("gloo")
    torch.manual_seed(0)
    end = [TiedLayerSpec("end", nn.Linear, 8, 8, bias=False)] if tied else []
    layers, (x, y) = [nn.Linear(8, 8) for _ in range(4)], torch.randn(2, 4, 8)
    model = PipelineModule([*end, *layers, *end], stages, loss_fn=nn.MSELoss())
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    config = {"train_batch_size": 4, "gradient_clipping": 0.1}
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    engine.train_batch(iter([(x, 9 * y)]))
    changes = {name: each.detach() - before[name] for name, each in model.named_parameters()}
    torch.save(changes, f"{folder}/{rank}.pt")


if __name__ == "__main__":
    for n, tied in ((1, False), (1, True), (2, False), (2, True)):
        multiprocessing.spawn(train, (n, tied, folder := tempfile.mkdtemp()), n)  # type: ignore
        changes = {k: v for rank in range(n) for k, v in torch.load(f"{folder}/{rank}.pt").items()}
        norm = float(torch.stack([each.norm() for each in changes.values()]).norm())
        print(f"deepspeed {deepspeed.__version__}, stages {n}, tied {tied}: norm {norm:.4f}")
    print("WRONG: the limit is 0.1" if norm > 0.101 else "right: it is clipped to 0.1")
    raise SystemExit(3 if norm > 0.101 else 0)
