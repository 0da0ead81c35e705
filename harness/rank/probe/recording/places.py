"""Records what each module of the model gets and returns in one step, and the gradients of that.

Tensors are recorded as digests by row: a few numbers that have about the same distances as the rows
themselves, because they are projections on random directions, the same in each process.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from functools import cache, partial
from typing import Any

import torch

from harness.detectors.rows import leaves
from harness.rank import events
from harness.rank.probe.recording.micro_batches import MicroBatches
from harness.rank.probe.recording.parameters import full
from harness.rank.probe.recording.record import Record
from harness.rank.training.layouts import WRAPPERS, plain

DIRECTIONS = 8
"""Numbers of a digest."""

SAMPLED = 65_536
"""A longer row is represented by this many of its values."""

INFINITE = 1e4
"""What stands for infinity, as in a mask of attention: projections of infinities are no numbers."""

Digest = dict[str, Any]
"""``values`` with the projections of each row (rows x DIRECTIONS), ``rows`` with the dimension that
has the rows (or ``flat`` or ``whole``), the ``shape`` of a row, and ``eps``, an ulp of 1."""


class Places:
    """The recorder of a rank. It writes ``places``, the calls of modules in order, into a step."""

    def __init__(self, record: Record, model: MicroBatches, step: int) -> None:
        self._record, self._model, self._step = record, model, step
        self._names: dict[int, str] = {}
        """By the id of a module, its name in the model."""
        self._calls: list[tuple[Any, tuple[str, int]]] = []
        """The modules that are called now, with their names and the numbers of their calls."""
        self._makers: dict[Any, list[tuple[dict[str, Any], str]]] = {}
        """By the node of autograd that makes a tensor: the calls of modules that returned it in
        this forward pass, each with its label of the tensor."""
        self._ticks = itertools.count(1)

    def install(self) -> None:
        """Subscribe; before the model, whose handlers then are around these."""
        events.instrument.on(events.ModuleCall, around=self._called)

    def _called(self, event: events.ModuleCall, call: Callable[[], Any]) -> Any:
        from torch.utils._pytree import tree_map_only

        record = self._record
        on = record.is_open() and len(record.steps) == self._step and record.now.rows
        if not on or not torch.is_grad_enabled():
            return call()
        prefix = self._model.names.prefix(event.owner)
        if prefix is not None and id(event.owner) not in self._names:  # the model, or a stage
            for title, part in event.owner.named_modules():
                self._names[id(part)] = prefix + plain(title)
        name = self._names.get(id(event.owner))
        is_wrapper = any(child in WRAPPERS for child, _ in event.owner.named_children())
        if name is None or is_wrapper:
            return call()
        if not self._calls:
            self._makers.clear()
        entry = self._begin(event.owner, name)
        names = _argument_names(event.owner, len(event.arguments))
        pairs = [*zip(names, event.arguments, strict=True), *event.keywords.items()]
        for label, value in pairs:
            self._look(entry, f"in {label}", leaves(value))
        views = [(label, self._watched(entry, f"in {label} 0", value)) for label, value in pairs]
        event.arguments = [view for _, view in views[: len(names)]]
        event.keywords = dict(views[len(names) :])
        self._calls.append((event.owner, (name, entry["often"])))
        try:
            output = call()
        finally:
            self._calls.pop()
        self._look(entry, "out", leaves(output, is_dataclass))
        entry["left"] = next(self._ticks)
        if not self._calls and not isinstance(output, torch.Tensor):
            # What the model returns, it may also use itself, as it does a hidden state.
            output = tree_map_only(
                torch.Tensor, lambda one: one.view_as(one) if one.requires_grad else one, output
            )
        for number, tensor in enumerate(_tensors(leaves(output, is_dataclass))):
            if tensor.requires_grad and not hasattr(tensor, "full_tensor"):
                tensor.register_hook(partial(self._back, entry, f"out {number}"))
                if not self._calls:
                    tensor.register_hook(partial(self._mark, tensor.grad_fn))
                elif tensor.grad_fn is not None:
                    self._makers.setdefault(tensor.grad_fn, []).append((entry, f"out {number}"))
        # A hook of the script belongs to the code after the module: it comes before ours.
        is_plain = isinstance(output, torch.Tensor) and output.requires_grad and not output.is_leaf
        return output.view_as(output) if is_plain else output

    def _mark(self, node: Any, _: Any) -> None:
        """Mark the outputs of inner modules that the model's own code makes this node of, without
        another module between them. A loss that the model computes uses such outputs."""
        waiting, reached = [node], set()
        while waiting:
            node = waiting.pop()
            if node is None or node in reached:
                continue
            reached.add(node)
            if node in self._makers:
                for entry, label in self._makers[node]:
                    entry["used"].append(label)
            else:
                waiting += (following for following, _ in node.next_functions)

    def _begin(self, module: Any, name: str) -> dict[str, Any]:
        """Note a call that begins."""
        step = self._record.now
        micro_batch = len(step.rows) - 1
        earlier = [one for one in step.places if one["name"] == name]
        entry = {
            "name": name,
            "often": sum(one["micro_batch"] == micro_batch for one in earlier),
            "micro_batch": micro_batch,
            "parent": self._calls[-1][1] if self._calls else None,
            "line": _line(self._calls[-1][0]) if self._calls else 0,
            "kind": type(module).__name__,
            "source": _source(type(module)),  # type: ignore[arg-type]
            "again": self._record.in_backward,
            "entered": next(self._ticks),
            "left": 0,
            "digests": {},
            "gradients": {},
            "times": {},
            "used": [],
        }
        step.places.append(entry)
        return entry

    def _look(self, entry: dict[str, Any], side: str, values: Any) -> None:
        entry["rows"] = len(self._record.now.rows[entry["micro_batch"]])
        for number, tensor in enumerate(_tensors(values)):
            entry["digests"][f"{side} {number}"] = digest(tensor, entry["rows"])

    def _watched(self, entry: dict[str, Any], label: str, value: Any) -> Any:
        """The argument as a view of its own: what the module itself adds to the gradient of a
        tensor is that of the view."""
        if not isinstance(value, torch.Tensor) or not value.requires_grad or value.is_leaf:
            return value
        if hasattr(value, "full_tensor"):
            return value
        view = value.view_as(value)
        view.register_hook(partial(self._back, entry, label))
        return view

    def _back(self, entry: dict[str, Any], label: str, gradient: Any) -> None:
        if gradient is not None:
            entry["gradients"][label] = digest(gradient, entry["rows"])
            entry["times"][label] = next(self._ticks)


def _argument_names(module: Any, count: int) -> list[str]:
    """The names of a module's positional arguments: another release may pass them by keyword, or in
    another order. Their numbers, where there are no names."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):  # its forward has no signature
        parameters = []
    plain_kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for parameter in parameters if parameter.kind in plain_kinds]
    return [*names, *map(str, range(len(names), count))][:count]


def _tensors(values: Any) -> Iterator[Any]:
    return (value for _, value in values if isinstance(value, torch.Tensor) and value.numel())


def digest(tensor: Any, rows: int) -> Digest:
    """The digest of a tensor of a micro-batch with so many rows."""
    floats = tensor.is_floating_point()
    eps = torch.finfo(tensor.dtype).eps if floats else 0.0
    whole = full(torch.view_as_real(tensor) if tensor.is_complex() else tensor)
    shape = list(whole.shape)
    if rows and shape[:1] == [rows]:
        dimension, shape = "0", shape[1:]
    elif rows and shape[1:2] == [rows]:
        dimension, whole, shape = "1", whole.transpose(0, 1), [shape[0], *shape[2:]]
    elif rows and shape and shape[0] % rows == 0:
        dimension, shape = "flat", [shape[0] // rows, *shape[1:]]
    else:
        dimension, rows = "whole", 1
    vectors = whole.reshape(rows, -1)
    if (count := vectors.shape[1]) > SAMPLED:
        generator = torch.Generator().manual_seed(count)
        vectors = vectors[:, torch.randint(0, count, (SAMPLED,), generator=generator)]
    vectors = vectors.double()
    vectors = torch.where(vectors.isinf(), vectors.sign() * INFINITE, vectors)
    values = vectors @ _directions(vectors.shape[1])
    return {"values": values, "rows": dimension, "shape": shape, "eps": eps}


@cache
def _directions(count: int) -> Any:
    """Random signs, divided so that projections have the length of the vector on average."""
    generator = torch.Generator().manual_seed(count)
    signs = torch.randint(0, 2, (count, DIRECTIONS), generator=generator)
    return (2.0 * signs - 1).double() / DIRECTIONS**0.5


@cache
def _source(kind: type) -> list[Any]:
    """The file and the line in which a class defines its forward."""
    code = getattr(inspect.unwrap(kind.forward), "__code__", None)  # type: ignore[attr-defined]
    return [code.co_filename, code.co_firstlineno] if code else ["", 0]


def _line(caller: Any) -> int:
    """The line that a module executes in its forward now; 0 if it is not known."""
    code = getattr(inspect.unwrap(type(caller).forward), "__code__", None)
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is code:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return 0
