"""Which stage of a pipeline of ``torch.distributed.pipelining`` a module is. It needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from ..events import frames
from .layouts import Described, Layout, Share, instances

PIPELINE = "torch.distributed.pipelining.stage"

REHEARSALS = ("_forward_metadata_inference", "_shape_inference")
"""Functions in which torch's stages call their module only to learn shapes."""


class Pipeline(Layout):
    """Stages of ``torch.distributed.pipelining``: ranks have other parameters under one name."""

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        self.stages: dict[int, str] = {}
        for stage in instances(PIPELINE, "_PipelineStageBase"):
            name = f"stage {stage.stage_index}"
            for parameter in stage.submod.parameters():
                self.stages[id(parameter)] = name
                inner = modules.names.get(id(parameter))
                if inner is not None and not inner.startswith("stage "):
                    modules.names[id(parameter)] = f"{name}: {inner}"

    def share(self, parameter: Any, described: Described) -> Share | None:
        described.part = self.stages.get(id(parameter), "")
        return None


def rehearses(module: Any) -> bool:
    """Whether torch's pipeline calls a stage only to learn shapes."""
    return any(frame.f_code.co_name in REHEARSALS for frame in _frames_of_stage(module))


def stage_number(module: Any) -> int | None:
    """The number of the pipeline stage that calls this module, from 0; None without one."""
    for frame in _frames_of_stage(module):
        return int(frame.f_locals["self"].stage_index)
    return None


def _frames_of_stage(module: Any) -> Iterator[Any]:
    """The frames of torch's pipeline stage that calls this module now, if any."""
    if "torch.distributed.pipelining" not in sys.modules:
        return
    for frame in frames():
        caller = frame.f_locals.get("self")
        if getattr(caller, "submod", None) is module and hasattr(caller, "stage_index"):
            yield frame
