"""Call backward for four micro-batches, each of which trains another weight, and step once.

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29741"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")


def moves(stage: int) -> list[float]:
    """How far a step of SGD with rate 1 moves each weight."""
    model = torch.nn.Linear(4, 1, bias=False)
    before = model.weight.detach().clone()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    zero = {"stage": stage, "reduce_bucket_size": 1000}  # the default is slow on a CPU
    config = {"train_batch_size": 1, "zero_optimization": zero, "gradient_clipping": 0.0}
    config |= {"zero_allow_untested_optimizer": True}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    for inputs in torch.eye(4).split(1):  # 1 0 0 0, then 0 1 0 0, and so on
        engine.backward(engine(inputs).sum() / 4)
    engine.step()
    return [round(move, 4) for move in (before - model.weight.detach()).flatten().tolist()]


by_stage = {stage: moves(stage) for stage in (0, 1, 2)}
for stage, weights in by_stage.items():
    print(f"deepspeed {deepspeed.__version__}, stage {stage}: {weights}, right: 0.25 each")
lost = by_stage[1].count(0.0) + by_stage[2].count(0.0)
print("WRONG: all gradients but the last are lost" if lost else "right: all of them count")
raise SystemExit(3 if lost > 0 else 0)
