"""Train a pipeline in bf16 whose first and last layer are tied: do both copies learn the same?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29614"}

import deepspeed
import torch


def gradients(rank: int) -> list[float]:
    """What a step of SGD with rate 1 subtracts from each stage's copy of the tied weight."""
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it
    deepspeed.init_distributed("gloo", False, rank=rank, world_size=2)
    tied = deepspeed.pipe.TiedLayerSpec("tied", torch.nn.Linear, 1, 1, bias=False)
    layers = [tied, torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), tied]
    model = deepspeed.PipelineModule(layers, num_stages=2, loss_fn=lambda y, _: y.mean())
    for parameter in model.parameters():
        torch.nn.init.ones_(parameter)  # so the copies have the gradients 1 and 3
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    config |= {"data_types": {"grad_accum_dtype": "fp32"}, "zero_allow_untested_optimizer": True}
    config |= {"gradient_clipping": 0}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    row, changes = torch.ones(1, 1, dtype=torch.bfloat16), [0.0, 0.0]
    engine.train_batch(iter([(row, row)]))
    torch.distributed.all_gather_object(changes, 1 - float(model.tied_modules["tied"].weight))
    return changes


if __name__ == "__main__":
    rank_0 = torch.multiprocessing.spawn(gradients, join=False, daemon=True)  # type: ignore
    copy1, copy2 = gradients(1)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: the copies apply {copy1:g} and {copy2:g} of 1 + 3")
    print("WRONG: each applies its own gradient" if copy1 != copy2 else "right: both apply the sum")
    raise SystemExit(3 if copy1 != copy2 else 0)
