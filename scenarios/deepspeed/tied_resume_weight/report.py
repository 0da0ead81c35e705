"""Train a pipeline with tied layers in bf16, save and load: has the last stage the same weight?

Needs torch and deepspeed, and no GPU. The exit code is 3 if the bug is there."""

import os
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch


def saved_and_loaded(rank: int, out: str) -> tuple[float, float]:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it
    deepspeed.init_distributed("gloo", False, init_method=f"file:{out}/0", rank=rank, world_size=2)
    torch.manual_seed(0)
    tied = deepspeed.pipe.TiedLayerSpec("tied", torch.nn.Linear, 1, 1, bias=False)
    layers = [tied, torch.nn.Linear(1, 1), torch.nn.Linear(1, 1), tied]
    model = deepspeed.PipelineModule(layers, num_stages=2, loss_fn=lambda y, _: y.mean())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"train_batch_size": 1, "bf16": {"enabled": True}, "zero_optimization": {"stage": 1}}
    config |= {"data_types": {"grad_accum_dtype": "fp32"}, "zero_allow_untested_optimizer": True}
    engine = deepspeed.initialize(model=model, optimizer=sgd, config=config)[0]
    row, weight = torch.ones(1, 1, dtype=torch.bfloat16), model.tied_modules["tied"].weight
    engine.train_batch(iter([(row, row)]))
    saved = float(weight)
    engine.save_checkpoint(out)
    engine.load_checkpoint(out)
    return saved, float(weight)


if __name__ == "__main__":
    out = tempfile.mkdtemp()
    rank_0 = torch.multiprocessing.spawn(saved_and_loaded, (out,), join=False, daemon=True)  # type: ignore
    saved, loaded = saved_and_loaded(1, out)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: the last stage has {saved:.4f} when it is saved")
    print("WRONG:" if loaded != saved else "right:", f"it has {loaded:.4f} after the load")
    raise SystemExit(3 if loaded != saved else 0)
