"""What a rank has of parameters that Megatron splits."""

from __future__ import annotations

import os
from typing import Any

from .layouts import Layout, Share
from .posts import Described


class Megatron(Layout):
    """Tensor parallelism and experts, by the attributes of parameters."""

    def share(self, parameter: Any, described: Described) -> Share | None:
        if getattr(parameter, "allreduce", True) is False:
            described.left_out = "experts are not reduced over all ranks"
            return Share()
        if getattr(parameter, "tensor_model_parallel", False):
            described.part = f"part of rank {os.environ.get('RANK', 0)}"
            return Share(hooked=parameter)
        return None
