"""Train in fp16 where every step overflows: does DeepSpeed stop at ZeRO stage 0, as at stage 1?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there.
"""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for one rank
deepspeed.get_accelerator().is_fp16_supported = lambda: True  # torch has fp16 on any CPU


def train(stage: int) -> tuple[int, str]:
    """How many of 100 steps are skipped, and the exception."""
    model = torch.nn.Linear(8, 8)
    fp16 = {"enabled": True, "initial_scale_power": 4, "min_loss_scale": 1, "hysteresis": 1}
    config = {"train_batch_size": 1, "fp16": fp16, "zero_optimization": {"stage": stage}}
    adam = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed.initialize(model=model, optimizer=adam, config=config)
    for step in range(100):
        try:
            loss = engine(torch.full((1, 8), 6e4).half()).square().mean()  # inf in fp16
            engine.backward(loss)
            engine.step()
        except Exception as error:
            return step, str(error)
    return engine.skipped_steps, ""


print("deepspeed", deepspeed.__version__)
for stage in (1, 0):
    skipped, error = train(stage)
    print(f"stage {stage}: {skipped} steps skipped; then {error or 'the run goes on'}")
print("right: both stop" if error else "WRONG: stage 0 never stops, and takes no step any more")
raise SystemExit(3 if not error else 0)
