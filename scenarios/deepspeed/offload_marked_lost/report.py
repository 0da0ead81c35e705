"""Call backward four times before a step with an offloaded optimizer: do all of them count?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29839"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")


def moves(device: str) -> torch.Tensor:
    """How far a step of SGD with rate 1 moves the weights."""
    model = torch.nn.Linear(4, 1, bias=False)
    before = model.weight.detach().clone()
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    zero = {"stage": 2, "reduce_bucket_size": 1000, "offload_optimizer": {"device": device}}
    config = {"zero_optimization": zero, "train_batch_size": 1, "zero_allow_untested_optimizer": 1}
    config |= {"zero_force_ds_cpu_optimizer": False}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    for number, inputs in enumerate(torch.eye(4).split(1), 1):  # 1 0 0 0, then 0 1 0 0, and so on
        engine.set_gradient_accumulation_boundary(number == 4)
        engine.backward(engine(inputs).sum() / 4)
    engine.step()
    return (before - model.weight.detach()).flatten()


print(f"deepspeed {deepspeed.__version__}: the sum of the gradients moves each weight by 0.25")
for device in ("none", "cpu"):
    steps = moves(device)
    print(f"ZeRO-2, offload to {device}: the weights move by", *(f"{each:.4f}" for each in steps))
lost = int((steps.abs() < 0.01).sum())
print(f"WRONG: {lost} of 4 passes are lost" if lost else "right: all passes count")
raise SystemExit(3 if lost > 0 else 0)
