"""Compares tied weights: the copies of one weight on several pipeline stages must stay equal.

In a pipeline the first stage uses a weight to embed, and the last one to compute logits. Each has a
copy and updates it itself, with the sum of both stages' gradients. BLOOM-176B's first
bf16 run applied each stage's own gradient instead: nothing failed, and the loss was even lower.

    differences = tied_differences(tied_copies(engine.module))  # on every rank, after a step
    assert not differences, differences[0]

Without DeepSpeed, name the copies: ``tied_differences([("embedding", weight, group)])``, where
``group`` is the process group of the ranks that hold one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from harness.detectors.replicas import Difference, replica_differences
from harness.detectors.state import MASTER, master_copy

Copy = tuple[str, Tensor, "dist.ProcessGroup | None"]
"""A name, this rank's copy, and the group of the ranks that hold one."""


def tied_copies(module: nn.Module, masters: bool = False) -> Iterator[Copy]:
    """The tied weights of a DeepSpeed PipelineModule that this rank holds a copy of.

    They are those that its TiedLayerSpecs name as ``tied_weight_attr``: nothing else of a tied
    module is meant to stay equal. Yields nothing on a stage without a copy, or where one stage
    holds all layers. With ``masters`` the fp32 copies follow, which show after a load what the
    broadcast of the weights has hidden; raises ValueError where the optimizer is partitioned
    (ZeRO over several data-parallel ranks) and this rank holds no whole one.
    """
    comms: dict[str, dict[str, Any]] = getattr(module, "tied_comms", {})
    for key, comm in comms.items():
        attributes = comm["weight_attr"]
        for attribute in [attributes] if isinstance(attributes, str) else attributes:
            weight = comm["module"]
            for part in attribute.split("."):
                weight = getattr(weight, part)
            name = f"tied_modules.{key}.{attribute}"
            yield name, weight, comm["group"]
            if masters:
                master = master_copy(weight)
                if master is None or master.shape != weight.shape:
                    raise ValueError(f"this rank has no whole fp32 copy of {name}")
                yield name + MASTER, master, comm["group"]


def tied_differences(copies: Iterable[Copy]) -> list[Difference]:
    """Compare each copy with that of the first rank of its group, bit by bit.

    A collective call: all ranks of a group pass the same names, in the same order, with tensors of
    the same shape and dtype. Costs one all-gather of each tensor. Empty where all copies agree, and
    on a rank that holds none. ``Difference.ranks`` are those in the group, where the first is 0.
    """
    return [
        d for name, tensor, group in copies for d in replica_differences([(name, tensor)], group)
    ]
