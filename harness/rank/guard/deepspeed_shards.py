"""What a rank has of parameters that DeepSpeed's ZeRO splits."""

from __future__ import annotations

from functools import partial
from typing import Any

from .layouts import Layout, Share
from .posts import Described


class DeepSpeed(Layout):
    """ZeRO 1 to 3."""

    package = "deepspeed"

    def share(self, parameter: Any, described: Described) -> Share | None:
        if hasattr(parameter, "ds_tensor"):
            described.left_out, described.optimized = "ZeRO 3 shards them", True
            described.numel, described.size = parameter.ds_numel, 0  # it comes and goes
            described.begin = described.end = 0
            return Share(steps=False)
        if not hasattr(parameter, "_hp_mapping"):
            return None
        fragment = parameter._hp_mapping
        described.optimized = True  # the optimizer has parts of flat copies
        if fragment is None:
            described.begin = described.end = 0  # another rank updates it
            return Share(hooked=parameter, steps=False)
        address = fragment.lp_fragment_address
        described.begin, described.end = address.start, address.start + address.numel
        return Share(hooked=parameter, used=partial(_fragment_gradient, fragment), steps=False)


def _fragment_gradient(fragment: Any, optimizer: Any) -> Any:
    """The gradient of a part of the fp32 copy that this rank updates, for ZeRO 1 and 2."""
    part = fragment.hp_fragment
    for group in optimizer.param_groups:
        for whole in group["params"]:
            if whole.grad is None or part.device != whole.device:
                continue
            start = (part.data_ptr() - whole.data_ptr()) // whole.element_size()
            if 0 <= start < whole.numel():
                return whole.grad.reshape(-1)[start : start + part.numel()]
    return None
