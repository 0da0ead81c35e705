"""Train two numbers with Adam under ZeRO: is the first step as long as without ZeRO?

Needs torch and deepspeed (before 0.14.1 also Intel's oneCCL), and no GPU. The exit code is 3 if the
bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29604"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")


def first_step(stage: int) -> float:
    """How far it moves the weights, whose gradient is 1."""
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    adam = torch.optim.Adam(model.parameters(), lr=0.25)
    zero = {"stage": stage, "reduce_bucket_size": 1000}  # the default is slow on a CPU
    config = {"train_batch_size": 1, "zero_optimization": zero}
    config["zero_allow_untested_optimizer"] = True
    engine = deepspeed.initialize(model=model, optimizer=adam, config=config)[0]
    engine.backward(engine(torch.ones(1, 2)).sum())
    engine.step()
    return float((before - model.weight.detach()).mean())


steps = [first_step(stage) for stage in (0, 1, 2)]
print("deepspeed", deepspeed.__version__)
for stage, step in enumerate(steps):
    print(f"ZeRO stage {stage}: the first step is {step:.4f}; Adam's is the learning rate, 0.25")
bug = any(abs(step / 0.25 - 1) > 0.01 for step in steps)
print("WRONG: Adam has counted a step too many" if bug else "right: all are Adam's")
raise SystemExit(3 if bug else 0)
