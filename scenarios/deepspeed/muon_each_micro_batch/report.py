"""Train a step with Muon at ZeRO stage 3, in 1 and in 4 micro-batches: is it equally large?

Needs torch and deepspeed from 0.18.9 on, and no GPU. The exit code is 3 if the bug is there."""

import os

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29833"}

import deepspeed
import torch

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")
zero = {"stage": 3, "reduce_scatter": False, "reduce_bucket_size": 1000}


def largest(micro_batches: int) -> float:
    """The largest singular value of an update with a rate of 1."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8, bias=False)
    model.weight.use_muon = True
    before, rows = model.weight.detach().clone(), torch.randn(8, 8).split(8 // micro_batches)
    config = {"train_batch_size": 8, "gradient_accumulation_steps": micro_batches}
    config |= {"optimizer": {"type": "Muon", "params": {"lr": 1.0}}, "gradient_clipping": 0.0}
    config |= {"zero_optimization": zero}
    parameters = list(model.parameters())
    engine = deepspeed.initialize(model=model, model_parameters=parameters, config=config)[0]
    for part in rows:
        engine.backward((engine(part) - 1).square().mean())
        engine.step()
    with deepspeed.zero.GatheredParameters(parameters):
        return float(torch.linalg.matrix_norm(before - model.weight.detach(), 2))


one, four = largest(1), largest(4)
print(f"deepspeed {deepspeed.__version__}: an update of Muon in 1 micro-batch is {one:.3g} large, ")
print(f"one in 4 micro-batches {four:.3g}")
print("WRONG: an update of each micro-batch" if four > 1.5 else "right: an update of their mean")
raise SystemExit(3 if four > 1.5 else 0)
