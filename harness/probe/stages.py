"""Stages of a pipeline: the names that their parameters have in the whole model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from harness.probe.tensors import plain

REHEARSALS = ("_forward_metadata_inference", "_shape_inference")
"""Where torch's stages call their module only to learn shapes, with rows that come again."""


class Known:
    """The parameters whose names are known: of the model, or of the stages that are called one by
    one with nothing around them."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        """By the id of the parameter."""
        self.starts: dict[str, int] = {}
        """Of parameters of which an optimizer has a piece, the number of its first value."""
        self._parameters: list[Any] = []
        self._asked: dict[int, Any] = {}
        self._prefixes: dict[int, str] = {}
        """By the id of the module, what stands before the names that it has itself."""
        self._modules: list[Any] = []
        """As long as they live, no other object has their ids. The first one is the model."""

    def __contains__(self, module: Any) -> bool:
        return id(module) in self._prefixes

    def learn(self, module: Any) -> Iterator[tuple[str, Any]]:
        """The parameters of a module that were not known, with their names. After the first module,
        this concerns only what is trained: a frozen one is no stage of the model."""
        if module not in self:
            self._prefixes[id(module)] = self._prefix(module)
            self._modules.append(module)
        frozen_too = module is self._modules[0]
        for name, parameter in named_in_whole(module):
            if id(parameter) not in self.names and (frozen_too or parameter.requires_grad):
                self.names[id(parameter)] = self._prefixes[id(module)] + name
                self._parameters.append(parameter)
                yield self.names[id(parameter)], parameter

    def name(self, tensor: Any) -> str | None:
        """The name of what an optimizer has: a parameter, or a piece of one."""
        if id(tensor) not in self.names and id(tensor) not in self._asked:
            self._asked[id(tensor)] = tensor
            self._ask(tensor)
        return self.names.get(id(tensor))

    def _ask(self, tensor: Any) -> None:
        """Know a tensor of one dimension if it is a view of a piece of a parameter, as where the
        ranks share the optimizer's work."""
        if tensor.dim() != 1 or not tensor.numel() or not _lies_whole(tensor):
            return
        for whole in filter(_lies_whole, self._parameters):
            start = (tensor.data_ptr() - whole.data_ptr()) // whole.element_size()
            if whole.dtype == tensor.dtype and 0 <= start <= whole.numel() - tensor.numel():
                self.names[id(tensor)] = name = self.names[id(whole)]
                self.starts[name] = start
                return

    def _prefix(self, module: Any) -> str:
        """The number of a stage and a point, if other stages have the same names."""
        taken = set(self.names.values())
        if not any(name in taken for name, p in named_in_whole(module) if id(p) not in self.names):
            return ""
        number = number_of(module)
        return f"{len(self._modules) if number is None else number}."


def _lies_whole(tensor: Any) -> bool:
    """Whether the values of a tensor are all here, one after the other."""
    return not hasattr(tensor, "full_tensor") and tensor.is_contiguous()


def rehearses(module: Any) -> bool:
    """Whether a stage of torch's pipeline is called for the shapes alone."""
    return any(frame.f_code.co_name in REHEARSALS for frame in _frames_of_stage(module))


def number_of(module: Any) -> int | None:
    """Which stage of torch's pipeline calls its module, from 0; None if no stage does."""
    for frame in _frames_of_stage(module):
        return int(frame.f_locals["self"].stage_index)
    return None


def _frames_of_stage(module: Any) -> Iterator[Any]:
    """The frames in which torch's stage of a module runs, if it is one that calls it now."""
    if "torch.distributed.pipelining" not in sys.modules:
        return
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if getattr(caller, "submod", None) is module and hasattr(caller, "stage_index"):
            yield frame
        frame = frame.f_back  # type: ignore[assignment]


def named_in_whole(module: Any) -> Iterator[tuple[str, Any]]:
    """The parameters by their names in the whole model: megatron-core's stages count their layers
    from 0, but each layer knows its number in the model."""
    numbers = dict(_numbers(module))
    for name, parameter in module.named_parameters():
        parts = name.split(".")
        for end in range(len(parts), 0, -1):
            parts[end - 1] = numbers.get(".".join(name.split(".")[:end]), parts[end - 1])
        yield plain(".".join(parts)), parameter


def _numbers(module: Any) -> Iterator[tuple[str, str]]:
    """The layers that stand in a list and know their number, from 1: their paths, and their places
    in the list of the whole model. Numbers that do not count the list up mean something else."""
    lists: dict[str, dict[int, int]] = {}
    for path, each in module.named_modules():
        parent, _, place = path.rpartition(".")
        number = getattr(each, "layer_number", None)
        if place.isdigit() and isinstance(number, int) and number > 0:
            lists.setdefault(parent, {})[int(place)] = number - 1
    for parent, places in lists.items():
        if len({number - place for place, number in places.items()}) == 1:
            for place, number in places.items():
                yield ".".join(filter(None, (parent, str(place)))), str(number)
