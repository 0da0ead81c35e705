"""Save a pipeline whose tied module has a bias, and load it: does the last stage keep the bias?

Needs torch and deepspeed, and no GPU. The exit code is 1 if the bug is there."""

import os
import tempfile

os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}

import deepspeed
import torch


def engine() -> deepspeed.DeepSpeedEngine:
    spec, layer = deepspeed.pipe.TiedLayerSpec, ("tied", torch.nn.Linear, 8, 8)
    layers = [spec(*layer), spec(*layer, forward_fn=torch.nn.Linear.forward)]  # weight tied
    model = deepspeed.PipelineModule(layers, num_stages=2, loss_fn=torch.nn.MSELoss())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    return deepspeed.initialize(model=model, optimizer=sgd, config={"train_batch_size": 1})[0]


def biases(rank: int, own: str) -> list[str]:
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it
    deepspeed.init_distributed("gloo", False, init_method=f"file:{own}/0", rank=rank, world_size=2)
    torch.manual_seed(0)
    before, after = engine(), engine()
    before.train_batch(iter([(torch.ones(1, 8), torch.zeros(1, 8))]))
    before.save_checkpoint(own)
    after.load_checkpoint(own)
    return [f"{each.module.tied_modules['tied'].bias[0]:.4f}" for each in (before, after)]


if __name__ == "__main__":
    own = tempfile.mkdtemp()
    rank_0 = torch.multiprocessing.spawn(biases, (own,), join=False, daemon=True)  # type: ignore
    saved, loaded = biases(1, own)
    rank_0.join()
    print(f"deepspeed {deepspeed.__version__}: the last stage's bias is {saved} when saved")
    print("WRONG:" if loaded != saved else "right:", f"it is {loaded} after the load")
    raise SystemExit(loaded != saved)
