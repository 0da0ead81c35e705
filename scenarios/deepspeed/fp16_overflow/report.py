"""Train attention in bf16 and fp16 until its scores pass 65504: does the training go on?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29608"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for one rank
deepspeed.get_accelerator().is_fp16_supported = lambda: True  # torch has fp16 on any CPU


def train(precision: str) -> tuple[float, int, str]:
    torch.manual_seed(0)
    model, end = torch.nn.Linear(64, 128), "nothing stops it"
    zero = {"stage": 1, "reduce_bucket_size": 10000}  # the default is slow on a CPU
    config = {"train_batch_size": 1, precision: {"enabled": True}, "zero_optimization": zero}
    adam = torch.optim.AdamW(model.parameters(), lr=1.0)  # so large that the weights grow
    engine = deepspeed.initialize(model=model, optimizer=adam, config=config)[0]
    try:
        for x in torch.randn(60, 16, 64).to(model.weight.dtype):
            query, key = engine(x).chunk(2, -1)
            scores = query @ key.T
            loss = torch.nn.functional.cross_entropy(scores.float() / 8, torch.arange(16))
            engine.backward(loss)
            engine.step()
    except Exception as error:
        end = str(error)
    return float(scores.abs().max()), engine.skipped_steps, end


for precision, (score, skipped, end) in {p: train(p) for p in ("bf16", "fp16")}.items():
    print(f"deepspeed {deepspeed.__version__} in {precision}: the scores were up to {score:.4g};")
    print(f"{skipped} of 60 steps were skipped; {end}")
print("WRONG: fp16 stops, as no loss scale helps" if "loss" in end else "right: fp16 goes on, too")
raise SystemExit(3 if "loss" in end else 0)
