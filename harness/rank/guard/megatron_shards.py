"""What a rank has of parameters that Megatron splits."""

from __future__ import annotations

import os
import sys
from typing import Any

from .layouts import Layout, Share
from .posts import Described


class Megatron(Layout):
    """Tensor parallelism and experts, by the attributes of parameters."""

    package = "megatron"

    def share(self, parameter: Any, described: Described) -> Share | None:
        if getattr(parameter, "allreduce", True) is False:
            described.left_out = "experts are not reduced over all ranks"
            return Share()
        if getattr(parameter, "tensor_model_parallel", False):
            described.part = f"part of rank {os.environ.get('RANK', 0)}"
            return Share(hooked=parameter)
        if _is_split():
            described.left_out = "Megatron's tensor parallelism adds up parts of them"
            return Share(is_copy=True)
        return None


def _is_split() -> bool:
    """Whether Megatron splits weights over several ranks."""
    state: Any = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return False
    return bool(state.get_tensor_model_parallel_world_size() > 1)
