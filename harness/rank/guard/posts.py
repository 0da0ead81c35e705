"""A post: what one rank tells rank 0 of a checked step, as bytes."""

from __future__ import annotations

import ctypes
import json
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from .budget import Cost

TYPES = {"float32": torch.float32, "int64": torch.int64}


@dataclass
class Described:
    """A parameter, as other ranks and the judge know it."""

    name: str
    numel: int
    """Values of the whole parameter."""
    size: int
    """Values that this rank has of the weight."""
    begin: int
    end: int
    """The range of the flat parameter that this rank updates."""
    ranks: list[int]
    """The ranks whose gradients are averaged; empty if no wrapper says so."""
    copy: str
    """Ranks with the same text have copies of the same values."""
    optimized: bool
    """Whether the optimizer has it."""
    trained: bool
    """Whether it requires a gradient."""
    dtype: str
    left_out: str = ""
    """Why its gradients are not compared; empty if they are."""
    part: str = ""
    """Which part of a weight it is that tensor parallelism splits; empty if it is a whole one.
    Gradients are averaged among ranks with the same part."""


@dataclass
class Update:
    """How a parameter was updated: what the judge needs beside the values in ``updates``."""

    parameter: int
    count: int
    """Values of each tensor."""
    state: list[str]
    """The names of the optimizer's moments that were there before the step."""
    step: float
    """The optimizer's count of steps before this one; negative if it is among the values."""
    rate: float
    """The learning rate; negative if it is among the values."""
    group: dict[str, Any]
    """The settings of the parameter's group."""


@dataclass
class LocalAlarm:
    """A fault that a rank sees alone."""

    check: str
    kind: str
    text: str
    size: float = 0.0


@dataclass
class Post:
    """What a rank saw in a checked step."""

    rank: int
    optimizer: int
    """The number of the optimizer in this process."""
    check: int
    step: int = 0
    missed: bool = False
    """Whether the rank learned of this check too late, and has nothing to tell."""
    kind: str = ""
    """The class of the optimizer."""
    optimizers: int = 1
    cost: Cost = field(default_factory=Cost)
    described: list[Described] = field(default_factory=list)
    """The parameters; empty if they are those of the post before."""
    numbers: list[int] = field(default_factory=list)
    """The parameters that this check looks at; empty: all. ``computed``, ``weights`` and ``bits``
    have these parameters, in this order; ``first_bits`` has all."""
    computed: dict[str, str] = field(default_factory=dict)
    """By the number of a parameter, the type of the gradients that this rank computed for it."""
    unusable: list[int] = field(default_factory=list)
    """The parameters with gradients that cannot be sampled: sparse ones."""
    used: list[tuple[int, int, int]] = field(default_factory=list)
    """Parameters, and the first and last numbers of the positions, of the values in ``used``."""
    without_gradient: list[str] = field(default_factory=list)
    """Parameters for which a gradient was computed and the optimizer has none."""
    updates: list[Update] = field(default_factory=list)
    rows: list[tuple[int, list[int]]] = field(default_factory=list)
    """The loaders that were read in this step, and the rows."""
    dropped: int = 0
    """How often gradients were cleared before a step used them."""
    is_whole: bool = False
    """Whether the step had as many micro-batches as the first one, and several."""
    foreign: int = 0
    """Tensors of the optimizer that belong to no module and have no gradient."""
    unheld: list[str] = field(default_factory=list)
    """Parameters with gradients that no optimizer has."""
    coarse: bool = False
    """Whether gradients travel in 16 bits."""
    lossy: str = ""
    """A reduction that is no mean on purpose, such as PowerSGD."""
    fused_scale: bool = False
    """Whether the optimizer divides by a loss scale itself."""
    alarms: list[LocalAlarm] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Releases and settings, in the first post of rank 0."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """``computed``, ``used``, ``updates``, ``weights``, ``bits``, ``first_bits``, ``losses``."""

    def positions(self) -> dict[int, tuple[int, int]]:
        """By the number of a parameter, where its gradient is in ``used``."""
        places, at = {}, 0
        for number, first, last in self.used:
            places[number] = at, last - first
            at += last - first
        return places


def packed(post: Post) -> bytes:
    """A post as bytes: the length of the header, the header as JSON, and the tensors."""
    widest_first = sorted(post.tensors.items(), key=lambda item: -item[1].element_size())  # aligned
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in widest_first}
    header = asdict(_without_tensors(post))
    header["tensors"] = {name: [str(t.dtype)[6:], t.numel()] for name, t in tensors.items()}
    head = json.dumps(header).encode()
    parts = [ctypes.string_at(t.data_ptr(), t.numel() * t.element_size()) for t in tensors.values()]
    return b"".join([len(head).to_bytes(8, "big"), head, *parts])


def _without_tensors(post: Post) -> Post:
    return Post(**{**post.__dict__, "tensors": {}})


def unpacked(data: bytes) -> Post:
    """The post of these bytes. Raises ValueError if they are none."""
    try:
        return _unpacked(data)
    except (AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(f"no post: {error!r}") from error


def _unpacked(data: bytes) -> Post:
    end = 8 + int.from_bytes(data[:8], "big")
    header = json.loads(data[8:end])
    tensors, buffer = {}, bytearray(data[end:])
    at = 0
    for name, (dtype, count) in header.pop("tensors").items():
        kind = TYPES[dtype]
        if count:
            tensors[name] = torch.frombuffer(buffer, dtype=kind, count=count, offset=at).clone()
        else:
            tensors[name] = torch.zeros(0, dtype=kind)
        at += count * tensors[name].element_size()
    return Post(
        **{
            **header,
            "cost": Cost(**header["cost"]),
            "described": [Described(**one) for one in header["described"]],
            "updates": [Update(**one) for one in header["updates"]],
            "alarms": [LocalAlarm(**one) for one in header["alarms"]],
            "used": [(number, first, last) for number, first, last in header["used"]],
            "rows": [(loader, rows) for loader, rows in header["rows"]],
        },
        tensors=tensors,
    )
