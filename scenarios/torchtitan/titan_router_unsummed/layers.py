"""A layer of experts of torchtitan's DeepSeek-V3 for tests, whole and split over the ranks.

Imports torch and torchtitan: import it inside ``run``. Releases before 0.3 split a layer by hooks
of torch's ``parallelize_module``, newer ones by a configuration of each module.
"""

from __future__ import annotations

import copy
import dataclasses
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from harness.bugs import api

WIDTH = 256
MODEL = "debugmodel"
OLD = find_spec("torchtitan.models.moe") is not None


def layer(ctx: api.Context) -> Any:
    """The whole layer, with the same weights on all ranks."""
    module = _old_layer(ctx) if OLD else _configuration(ctx)[0].build()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.1)
    for buffer in module.buffers():
        buffer.zero_()
    return module.to(ctx.device)


def split(ctx: api.Context, whole_layer: Any, tokens: Tensor) -> tuple[Any, Tensor]:
    """The layer, split by tensor parallelism, and its outputs for the tokens."""
    module = copy.deepcopy(whole_layer)
    mesh = _split_old(ctx, module) if OLD else _split_new(ctx, module)
    outputs = module(distribute_tensor(tokens, mesh, [Shard(1)]))
    if not isinstance(outputs, DTensor):  # but the part of this rank, as older releases return
        outputs = DTensor.from_local(outputs, mesh, [Shard(1)])
    return module, whole(outputs)


def whole(tensor: Any) -> Tensor:
    """A DTensor, gathered from all ranks; another tensor as it is."""
    gathered: Tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return gathered


def _old_layer(ctx: api.Context) -> Any:
    from torchtitan.models.deepseek_v3 import deepseekv3_args
    from torchtitan.models.moe import MoE

    arguments = deepseekv3_args[MODEL]
    experts = dataclasses.replace(
        arguments.moe_args,
        score_before_experts=ctx.params.scores == "before",
        use_grouped_mm=False,  # as the model chooses for a device without such a kernel
    )
    return MoE(experts, WIDTH, arguments.moe_inter_dim)


def _split_old(ctx: api.Context, module: Any) -> Any:
    """Split the layer as that of a model of one block."""
    from torch.distributed.device_mesh import init_device_mesh
    from torchtitan.models.llama4.infra.parallelize import apply_moe_ep_tp

    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,), mesh_dim_names=("tp",))
    block: Any = nn.Module()
    block.moe, block.moe_enabled = module, True
    model: Any = nn.Module()
    model.layers = nn.ModuleDict({"0": block})
    apply_moe_ep_tp(model, mesh, None, None, None)  # without expert parallelism
    return mesh


def _configuration(ctx: api.Context) -> tuple[Any, Any]:
    """What newer releases make the layer from and split it by, and how they split it."""
    from torchtitan.config import ParallelismConfig
    from torchtitan.models.deepseek_v3 import model_registry

    if ctx.params.scores != "after":
        raise ValueError("from 0.3 on, torchtitan applies the scores after the experts alone")
    parallelism = ParallelismConfig(
        tensor_parallel_degree=ctx.world_size, spmd_backend="partial_dtensor"
    )
    model = model_registry(MODEL).model
    model.update_from_config(config=SimpleNamespace(parallelism=parallelism))
    return model.layers[-1].moe, parallelism


def _split_new(ctx: api.Context, module: Any) -> Any:
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import set_spmd_backend

    _, parallelism = _configuration(ctx)
    set_spmd_backend(parallelism.spmd_backend)
    dimensions = ParallelDims.from_config(parallelism, ctx.world_size)
    module.parallelize(dimensions)
    return dimensions.get_mesh("tp")
