"""A few values of large tensors, and the sum of all their bits: work of the device, without a wait.

A sample has up to ``SIZE`` values at the positions ``offset + n * every`` of a parameter that is
flat and whole. A rank that has a shard of it has the positions that fall into its range.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

SIZE = 16
"""Values of each parameter."""

STRIDE = 7919
"""Another check looks at other positions: a prime number, so that few repeat soon."""

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Positions:
    """Where a flat tensor is looked at."""

    offset: int
    every: int
    count: int

    @staticmethod
    def of(numel: int, check: int = 0) -> Positions:
        """The positions in a tensor of this many values, in a check."""
        every = max(1, numel // SIZE)
        offset = check * STRIDE % every
        return Positions(offset, every, min(SIZE, -(-(numel - offset) // every)) if numel else 0)

    def within(self, begin: int, end: int) -> tuple[int, int]:
        """The numbers of the first position in a range, and of the first one after it."""
        begin_number = max(0, -(-(begin - self.offset) // self.every))
        end_number = min(self.count, -(-(end - self.offset) // self.every))
        return begin_number, max(begin_number, end_number)

    def values(self, tensor: Tensor) -> Tensor:
        """The values of a whole tensor at the positions: a view, if they are evenly spaced."""
        return self.part(tensor, 0, 0, self.count)

    def part(self, tensor: Tensor, begin: int, begin_number: int, end_number: int) -> Tensor:
        """The values of a shard that begins at ``begin``, at the positions ``begin_number`` to
        ``end_number``."""
        flat = tensor.detach() if tensor.requires_grad else tensor
        first, count = self.offset + begin_number * self.every - begin, end_number - begin_number
        if not flat.is_contiguous():  # without a copy of all of it
            return flat.take(torch.arange(count, device=flat.device) * self.every + first)
        return torch.as_strided(flat, (count,), (self.every,), flat.storage_offset() + first)


def version(tensor: Any) -> int:
    """How often a tensor was written in place; 0 if torch does not count that."""
    try:
        return int(tensor._version)
    except RuntimeError:  # a tensor of inference
        return 0


def partial_ranks(tensor: Any) -> int:
    """Of how many ranks the values must be added to get this tensor: those of a DTensor whose
    reduction is still to be done."""
    ranks, mesh = 1, getattr(tensor, "device_mesh", None)
    if mesh is not None:
        for dim, placement in enumerate(tensor.placements):
            ranks *= mesh.size(dim) if placement.is_partial() else 1
    return ranks


DEPTH = 4
"""How deep tensors are searched in the arguments and outputs of a module, and in a batch."""


def tensors_in(value: Any, depth: int = DEPTH) -> Iterator[Tensor]:
    """The tensors in a value, such as a batch."""
    if isinstance(value, Tensor):
        yield value
    elif depth and isinstance(value, (list, tuple, Mapping)):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(part, depth - 1)


def joined(views: Sequence[Tensor]) -> Tensor:
    """The values of some views one after the other, in fp32, on the device of the first one."""
    if not views:
        return torch.zeros(0)
    views = [torch.view_as_real(one)[..., 0] if one.is_complex() else one for one in views]
    device = views[0].device
    if all(view.dtype == views[0].dtype and view.device == device for view in views):
        return torch.cat(list(views)).float()  # one conversion instead of one for each view
    return torch.cat([view.to(device).float() for view in views])


def stacked(sums: Sequence[Tensor]) -> Tensor:
    """Some single values, on the device of the first one."""
    if not sums:
        return torch.zeros(0, dtype=torch.int64)
    device = sums[0].device
    # A copy to the CPU that is not waited for may be read before it has arrived.
    return torch.stack([one.to(device, non_blocking=device.type != "cpu") for one in sums])


def appended(before: Tensor | None, views: Sequence[Tensor]) -> Tensor:
    """Some values, and those of views behind them. Without views they stay on their device."""
    if before is None or not len(before):
        return joined(views)
    return torch.cat([before, joined(views).to(before.device)]) if views else before


def largest(tensors: Sequence[Tensor | None]) -> Tensor:
    """The largest absolute value of each tensor: nan if it has one. It is 0 without a tensor."""
    return norms(tensors, torch.inf)


def norms(tensors: Sequence[Tensor | None], order: float) -> Tensor:
    """The norm of each tensor, of an order; 0 without a tensor."""
    groups: dict[Any, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor is None or not tensor.numel() or not tensor.is_floating_point():
            continue
        if tensor.element_size() > 1:  # torch cannot compare numbers of 8 bits
            groups.setdefault((tensor.device, tensor.dtype), []).append(number)
    if not groups:
        return torch.zeros(len(tensors))
    device = next(iter(groups))[0]
    sizes = [torch.zeros((), device=device)] * len(tensors)
    with torch.no_grad():
        for numbers in groups.values():
            group: Any = [tensors[n] for n in numbers]
            lengths: Any = torch._foreach_norm(group, order)
            lengths = torch.stack(lengths).float().to(device)
            if len(numbers) == len(tensors):
                return lengths
            for number, size in zip(numbers, lengths.unbind()):
                sizes[number] = size
    return torch.stack(sizes)


def on_device(value: Any, device: Any) -> Tensor:
    """A value as a tensor on a device. A number is filled in there: a copy would wait for it."""
    if isinstance(value, Tensor):
        return value.detach().to(device, non_blocking=True).float().reshape(1)
    return torch.full((1,), float(value), dtype=torch.float32, device=device)


def integers(tensor: Tensor) -> Tensor:
    """The bits of a tensor as integers, in the widest type that its memory allows: a view."""
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    flat, size = tensor.detach().reshape(-1), tensor.element_size()
    for width in (8, 4, 2, 1):
        aligned = flat.storage_offset() * size % width == flat.numel() * size % width == 0
        if width >= size and aligned:
            return flat.view(INTEGERS[width])
    return flat.view(INTEGERS[size])


def bit_sum(tensor: Tensor) -> Tensor:
    """The sum of all bits of a tensor as integers, modulo a power of two: any flip changes it.

    The sum has the type of its input, as torch would first copy the whole tensor for another one.
    """
    whole = integers(tensor)
    return whole.sum(dtype=whole.dtype).long()


MOST = 32
"""Parameters that a check looks at: it costs by their number, so a large model takes turns. With 64
a check took 14 to 22 ms on two H100, with 32 it takes 9."""


def turns(count: int) -> int:
    """After how many checks each of so many parameters was looked at: a power of two, so that
    the parameters of one rank's turn are among those of another rank that has fewer turns."""
    number = 1
    while count > MOST * number:
        number *= 2
    return number


@lru_cache(maxsize=8)
def chosen(names: tuple[str, ...], check: int) -> list[int]:
    """The numbers of the parameters that a check looks at; all in the first one.

    Ranks agree about it without a message, by the names: those of a pipeline have other numbers.
    """
    number = turns(len(names))
    part = [
        place
        for place, name in enumerate(names)
        if check == 1 or zlib.crc32(name.encode()) % number == check % number
    ]
    return part or list(range(len(names)))
