"""Save a pipeline whose tied embedding has a norm, as BLOOM's, and load it: is each norm kept?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch


def engine() -> deepspeed.DeepSpeedEngine:
    spec, parts = deepspeed.pipe.TiedLayerSpec, (torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    torch.nn.Sequential.weight = property(lambda self: self[0].weight)  # type: ignore  # is tied
    head = {"forward_fn": lambda module, rows: module[0](rows)}  # without the norm
    layers = [spec("tied", torch.nn.Sequential, *parts, **each) for each in ({}, head)]
    model = deepspeed.PipelineModule(layers, num_stages=2, loss_fn=torch.nn.MSELoss())
    config = {"train_batch_size": 1, "optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    return deepspeed.initialize(model=model, config=config)[0]


def norms(rank: int, out: str) -> list[str]:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it
    deepspeed.init_distributed("gloo", False, init_method=f"file:{out}/0", rank=rank, world_size=2)
    before, after = engine(), engine()
    torch.nn.init.constant_(before.module.tied_modules["tied"][1].weight, 0.5)  # as if trained
    before.save_checkpoint(out)
    after.load_checkpoint(out)
    return [f"{each.module.tied_modules['tied'][1].weight[0]:.4f}" for each in (before, after)]


if __name__ == "__main__":
    out = tempfile.mkdtemp()
    torch.multiprocessing.spawn(norms, (out,), join=False, daemon=True)  # type: ignore  # rank 0
    saved, loaded = norms(1, out)
    print(f"deepspeed {deepspeed.__version__}: the last stage's norm is {saved} when saved")
    print("WRONG:" if loaded != saved else "right:", f"it is {loaded} after the load")
    raise SystemExit(3 if loaded != saved else 0)
