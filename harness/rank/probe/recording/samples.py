"""Recognises a model's samples by their content, and makes all samplers draw one order."""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from typing import Any

import torch

from harness.detectors.rows import checksum, leaves
from harness.rank.events import Patches, calling_frame
from harness.rank.probe.recording.shards import assembled

SAMPLERS = ("torch/utils/data/", "accelerate/", "transformers/", "lightning/")
"""Parts of the paths of code that draws the order of a dataset."""


def digest(tensor: Any) -> str:
    """A short name for the content of a tensor."""
    return checksum(tensor.numpy().tobytes())


def bound(
    module: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of a call, by the parameter names of the module's ``forward``.

    Trainers of trl pass ``input_ids`` by position. Wrappers such as DDP take any arguments, so the
    wrapped module's names are used.
    """
    if not arguments:
        return arguments, keywords
    try:
        signature = inspect.signature(module.forward)
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        if kinds[:1] == [inspect.Parameter.VAR_POSITIONAL] and hasattr(module, "module"):
            return bound(module.module, arguments, keywords)
        by_name = signature.bind_partial(*arguments, **keywords).arguments
    except (TypeError, ValueError):  # its forward has no signature, or another one
        return arguments, keywords
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for name, value in by_name.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional += value
        else:
            named |= value if kind is inspect.Parameter.VAR_KEYWORD else {name: value}
    return positional, named


class Returned:
    """What trained models have returned: no sample, though another model gets it, as a
    discriminator gets what a generator has made. Each layout rounds its values differently."""

    def __init__(self) -> None:
        self._storages: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()

    def add(self, tensors: Iterable[Any]) -> None:
        for tensor in filter(_is_plain, tensors):
            storage = tensor.untyped_storage()
            self._storages[storage.data_ptr()] = storage

    def __contains__(self, tensor: Any) -> bool:
        """Whether a tensor is returned by a model, or a view of such a tensor."""
        return _is_plain(tensor) and tensor.untyped_storage().data_ptr() in self._storages


def _is_plain(tensor: Any) -> bool:
    """Whether a tensor has memory of its own: a DTensor has none."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and not is_transformed()


def rows(
    arguments: Sequence[Any],
    keywords: Mapping[str, Any],
    returned: Container[Any] = (),
    dimension: int = 0,
) -> list[str]:
    """A digest of each row of a batch, without its padding.

    Text is recognised by its ``input_ids`` and its pictures and sounds, other data by the tensor
    with the most numbers in a row. Packed rows are split where ``position_ids`` restart. Other data
    may have its rows in ``dimension`` 1, as where time comes first.
    """
    with _without_transforms():
        return _rows(dict(_tensors(arguments, keywords, returned)), dimension)


def rows_dimension(
    arguments: Sequence[Any], keywords: Mapping[str, Any], count: int, returned: Container[Any] = ()
) -> int:
    """The dimension, 0 or 1, of the rows of a script's first batch, which has ``count`` rows: 1 if
    only that dimension has this length."""
    with _without_transforms():
        tensors = dict(_tensors(arguments, keywords, returned))
        if not tensors or _has_ids(tensors):
            return 0
        shape = _most_numbers(tensors).shape
    return int(count > 1 and count not in shape[:1] and shape[1:2] == (count,))


def _has_ids(tensors: Mapping[str, Any]) -> bool:
    return "input_ids" in tensors and bool(tensors["input_ids"].dim())


def _most_numbers(tensors: Mapping[str, Any]) -> Any:
    """The tensor with the most numbers in a row."""
    states = [t for t in tensors.values() if bool(t.any())]  # not the zeros of a new state
    return max(states or tensors.values(), key=lambda t: t[0].numel() if len(t) else 0)


def _rows(tensors: Mapping[str, Any], dimension: int) -> list[str]:
    if not tensors:
        return []
    if not _has_ids(tensors):
        samples = _most_numbers(tensors)
        if dimension < samples.dim():
            samples = samples.transpose(0, dimension)
        return [digest(_unpadded(row)) for row in samples]
    ids = tensors["input_ids"]
    samples = _texts(tensors, ids)
    for name, media in tensors.items():
        if name.startswith(MEDIA) and len(media) == len(samples):
            samples = [
                text + digest(_unpadded(row)) for text, row in zip(samples, media, strict=True)
            ]
    return samples


def is_transformed() -> bool:
    """Whether a transform of torch.func, such as vmap, applies."""
    from torch._C import _functorch as functorch

    return functorch.peek_interpreter_stack() is not None


def _without_transforms() -> AbstractContextManager[Any]:
    """A context in which a transform of torch.func, such as vmap, does not apply."""
    if not is_transformed():
        return nullcontext()
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    return temporarily_clear_interpreter_stack()


MEDIA = ("pixel_values", "input_features", "input_values")
"""What models of transformers call pictures and sounds: a script may crop them at random."""


def _texts(tensors: Mapping[str, Any], ids: Any) -> list[str]:
    mask, positions = tensors.get("attention_mask"), tensors.get("position_ids")
    mask = mask if mask is not None and mask.shape == ids.shape else None
    if positions is not None and positions.shape == ids.shape and len(ids) == 1:
        keep = ids == ids if mask is None else mask.bool()
        if starts := (positions[keep] == 0).nonzero().flatten().tolist():
            return [digest(part) for part in ids[keep].tensor_split(starts)[1:]]
    if mask is not None:
        return [digest(row[keep.bool()]) for row, keep in zip(ids, mask, strict=True)]
    return [digest(_unpadded(row)) for row in ids]


def _tensors(
    arguments: Sequence[Any], keywords: Mapping[str, Any], returned: Container[Any]
) -> Iterator[tuple[str, Any]]:
    """The tensors of a call with their names or positions, on the CPU and readable by numpy."""
    from torch._C import _functorch as functorch

    for name, value in [*leaves(list(arguments), is_dataclass), *leaves(keywords, is_dataclass)]:
        # What a transform such as vmap has wrapped has all rows of a tensor.
        while torch.is_tensor(value) and functorch.is_functorch_wrapped_tensor(value):
            value = functorch.get_unwrapped(value)
        if isinstance(value, torch.Tensor) and value.dim() and value not in returned:
            value = assembled(value.detach()).cpu()
            yield name, value.float() if value.is_floating_point() else value


def _unpadded(row: Any) -> Any:
    """The row without zeros at its end. A run of another whole number at either end is cut to one
    number."""
    row = _without_zeros(row)
    if row.is_floating_point() or not len(row):
        return row.contiguous()
    row = row.flatten()
    for _ in range(2):
        changes = (row != row[-1]).nonzero()
        row = row[: int(changes[-1]) + 2 if len(changes) else 1].flip(0)
    return row.contiguous()


def _without_zeros(row: Any) -> Any:
    """The row without zeros at its end, in each dimension; token ids also without zeros at their
    beginning. A batch is padded with zeros to its longest row."""
    if not row.dim():
        return row.reshape(1)
    values = (row != 0).nonzero()
    if not len(values):
        return row.flatten()[:0]
    begin, end = values.amin(0), values.amax(0) + 1
    if row.is_floating_point() or row.dim() > 1:
        begin = begin * 0
    return row[tuple(slice(int(first), int(last)) for first, last in zip(begin, end, strict=True))]


def draw_one_order() -> None:
    """Make every sampler that shuffles read the rows as they lie in the dataset, as one that does
    not shuffle reads them: Lightning shuffles on several ranks what one rank reads in sequence.
    Generators are in the same state afterwards as without that."""

    def draw(randperm: Any, /, *arguments: Any, **keywords: Any) -> Any:
        order = randperm(*arguments, **keywords)
        file = calling_frame().f_code.co_filename
        return order.sort().values if any(part in file for part in SAMPLERS) else order

    Patches().wrap(torch, "randperm", draw)
