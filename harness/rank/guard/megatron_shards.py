"""What a rank has of parameters that Megatron splits."""

from __future__ import annotations

import sys
from typing import Any

from .layouts import Layout, Share
from .posts import Described


class Megatron(Layout):
    """Tensor parallelism and experts, by the attributes of parameters."""

    package = "megatron"

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.gathered = {
            id(parameter)
            for one in modules.modules
            if getattr(one.__dict__.get("ddp_config"), "use_distributed_optimizer", False)
            for parameter in one.parameters()
        }

    def share(self, parameter: Any, described: Described) -> Share | None:
        if id(parameter) in self.gathered:  # a step's weights are copies only after a gather
            described.left_out = "Megatron's distributed optimizer shards them"
            described.begin = described.end = 0
            return Share()
        if getattr(parameter, "allreduce", True) is False:
            described.left_out = "experts are not reduced over all ranks"
            return Share()
        state: Any = sys.modules.get("megatron.core.parallel_state")
        is_part = getattr(parameter, "tensor_model_parallel", False)
        if state is None or not state.model_parallel_is_initialized():
            described.left_out = (
                "nothing says which ranks share Megatron's parts" if is_part else ""
            )
            return Share() if is_part else None
        if state.get_tensor_model_parallel_world_size() == 1:
            return None  # its layers mark their weights also where one rank has them whole
        if is_part:
            described.part = f"part {state.get_tensor_model_parallel_rank()}"
            return Share(hooked=parameter)
        described.left_out = "Megatron's tensor parallelism adds up parts of them"
        return Share(is_copy=True)
