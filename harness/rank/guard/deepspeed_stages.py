"""What the stages of DeepSpeed's pipeline share: a module that is tied is on each of its stages."""

from __future__ import annotations

import operator
from typing import Any

from .layouts import Layout, Share
from .posts import Described


class TiedStages(Layout):
    """Of a tied module some weights are copies, and their gradients are added over the stages. The
    others are trained by each stage for itself, under one name."""

    package = "deepspeed"

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.is_copy: dict[int, bool] = {}
        """By the id of a parameter of a tied module."""
        for one in modules.modules:
            ties = one.__dict__.get("tied_comms")
            for tie in ties.values() if isinstance(ties, dict) else ():
                module, names = tie["module"], tie["weight_attr"]
                names = [names] if isinstance(names, str) else names
                copies = {id(operator.attrgetter(name)(module)) for name in names}
                self.is_copy.update({id(p): id(p) in copies for p in module.parameters()})

    def share(self, parameter: Any, described: Described) -> Share | None:
        is_copy = self.is_copy.get(id(parameter))
        if is_copy is None:
            return None
        has_master = hasattr(parameter, "_hp_mapping")
        described.optimized |= has_master
        described.left_out = "DeepSpeed's pipeline ties their module to another stage"
        return Share(is_copy=is_copy, steps=not has_master)
