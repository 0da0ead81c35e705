"""A layer of experts of torchtitan's DeepSeek-V3, split over the ranks by tensor parallelism.

Releases before 0.3 split a layer by hooks, newer ones by a configuration of each module.
"""

import argparse
import dataclasses
import os
from importlib.util import find_spec
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--accum", type=int, default=1)
options = parser.parse_args()

on_gpu = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
if on_gpu:
    torch.cuda.set_device(device)
dist.init_process_group("nccl" if on_gpu else "gloo")
WIDTH, LENGTH, RANKS = 256, 16, dist.get_world_size()


def drawn(layer):
    torch.manual_seed(0)
    for weight in layer.parameters():
        nn.init.normal_(weight, std=0.1)
    for buffer in layer.buffers():
        buffer.zero_()
    return layer.to(device)


def hooked():
    from torchtitan.models.deepseek_v3 import deepseekv3_args
    from torchtitan.models.llama4.infra.parallelize import apply_moe_ep_tp
    from torchtitan.models.moe import MoE

    sizes = deepseekv3_args["debugmodel"]
    experts = dataclasses.replace(sizes.moe_args, use_grouped_mm=False)
    block, model = nn.Module(), nn.Module()
    block.moe, block.moe_enabled = drawn(MoE(experts, WIDTH, sizes.moe_inter_dim)), True
    model.layers = nn.ModuleDict({"0": block})
    mesh = init_device_mesh(device.type, (RANKS,), mesh_dim_names=("tp",))
    apply_moe_ep_tp(model, mesh, None, None, None)
    return block.moe, mesh


def configured():
    from torchtitan.config import ParallelismConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import set_spmd_backend
    from torchtitan.models.deepseek_v3 import model_registry

    plan = ParallelismConfig(tensor_parallel_degree=RANKS, spmd_backend="partial_dtensor")
    model = model_registry("debugmodel").model
    model.update_from_config(config=SimpleNamespace(parallelism=plan))
    layer = drawn(model.layers[-1].moe.build())
    if RANKS == 1:  # there is nothing to split
        return layer, None
    set_spmd_backend(plan.spmd_backend)
    dimensions = ParallelDims.from_config(plan, RANKS)
    layer.parallelize(dimensions)
    return layer, dimensions.get_mesh("tp")


def outputs(x):
    """The outputs of all ranks together."""
    if mesh is None:
        return layer(x)
    results = layer(distribute_tensor(x, mesh, [Shard(1)]))
    if not isinstance(results, DTensor):  # but the part of this rank
        results = DTensor.from_local(results, mesh, [Shard(1)])
    return results.full_tensor()


layer, mesh = hooked() if find_spec("torchtitan.models.moe") else configured()
draw = torch.Generator().manual_seed(0)
inputs, targets = (torch.randn(144, LENGTH, WIDTH, generator=draw) for _ in range(2))
optimizer = torch.optim.SGD(layer.parameters(), lr=0.01, foreach=False)
batches = zip(inputs.split(options.batch_size), targets.split(options.batch_size), strict=True)
for number, (x, y) in enumerate(batches, 1):
    loss = nn.functional.mse_loss(outputs(x.to(device)), y.to(device)) / options.accum
    loss.backward()
    if number % options.accum == 0:
        optimizer.step()
        optimizer.zero_grad()
