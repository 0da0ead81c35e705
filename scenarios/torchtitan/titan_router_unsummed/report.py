"""Split DeepSeek-V3's experts over 2 ranks: has the router the same gradient on both?

Needs 2 GPUs, torch with Triton, and torchtitan from 0.2 on. Exit code 3: the bug."""

from importlib.metadata import version

import torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torchtitan import config, distributed, tools
from torchtitan.models import deepseek_v3 as titan


def rank(number: int, gradients: torch.Tensor) -> None:
    torch.distributed.init_process_group(None, "tcp://127.0.0.1:29669", None, 2, number)
    device = tools.utils.device_type
    if hasattr(titan, "deepseekv3_args"):  # before 0.3
        sizes, mesh = titan.deepseekv3_args["debugmodel"], init_device_mesh(device, (2,))
        sizes.moe_impl, sizes.moe_args.use_grouped_mm = "standard", False
        how = [titan.DeepSeekV3Model(sizes), mesh, None, None, None]
        layer, split = how[0].layers["1"].moe, titan.infra.parallelize.apply_moe_ep_tp
    else:
        plan = config.ParallelismConfig(tensor_parallel_degree=2, spmd_backend="partial_dtensor")
        how = [distributed.ParallelDims.from_config(plan, 2)]
        model, mesh = titan.model_registry("debugmodel").model, how[0].get_mesh("tp")
        model.update_from_config(config=type("", (), {"parallelism": plan}))
        layer = model.layers[1].moe.build()
        split = layer.parallelize
    torch.manual_seed(0)
    [tensor.normal_(std=0.1) for tensor in layer.to(device).state_dict().values()]
    split(*how)
    layer(distribute_tensor(torch.randn(4, 16, 256), mesh, [Shard(1)])).square().sum().backward()
    gradients[number] = layer.router.gate.weight.grad.full_tensor()


if __name__ == "__main__":
    torch.multiprocessing.spawn(rank, (both := torch.zeros(2, 8, 256).share_memory_(),), 2)
    has_bug = bool((both[0] - both[1]).norm() > 0.01 * both[0].norm())
    print(f"torchtitan {version('torchtitan')}: norms of {[float(g.norm()) for g in both]}")
    print("WRONG: each has its own part" if has_bug else "right: both have the whole gradient")
    raise SystemExit(3 if has_bug else 0)
