"""The state of a training as sums of bits: when a checkpoint is saved, and when the training goes
on after a load.

The bits of a tensor are added as integers of the width of its values: the sum is that of its parts,
on however many ranks they are.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from ...training.layouts import living, local, plain
from ...training.parameters import Watched
from ..posting.posts import Alarm, Part, Pass, Post, TrainingState
from ..sampling.samples import INTEGERS, stacked
from ..sentences import number_of
from .resumes import Resume, rates, steps_of

SAVED, RESUMED = "saved", "resumed"
"""What is trained when a checkpoint is saved, and when the training goes on after a load."""
WRITTEN, FILLED = "written", "filled"
"""What torch's distributed checkpoint is given to write, and what it has filled in a load."""
GATHERED = "gathered"
"""What a rank saves that has gathered the tensors that ranks split."""
FILED = "filed"
"""The weights that a file gets of a training of which each rank has all."""
PARTED = "parted"
"""What ``torch.save`` writes of tensors that ranks split."""
MODEL = "model"
"""What a file gets as the weights of the whole model."""
MAIN = ("", "state_dict.", "model_state_dict.", "model.", "module.")
"""Where a file has the weights of its model: others may be an average, or a reference."""
SAMPLE = 4096
"""About so many values of these are looked at: of an empty file all are 0 or not finite."""
SAVES = (SAVED, WRITTEN, GATHERED)

WEIGHT, COPY = "weight", "copy"
"""Kinds of parts: what the model has, and what an optimizer of DeepSpeed steps instead. The others
are the names of what an optimizer keeps, such as ``exp_avg``; what is in a file has none."""

OUTER = "."
"""Is in the name of what an optimizer around this one keeps, behind its class."""

MOST_NAMES = 200
"""Names of split tensors that a post tells."""
MOST_NUMBERS, MOST_LETTERS = 1000, 100
"""Numbers and texts of a distributed checkpoint that are compared, and letters of a text."""
MOST_LEAVES = 20_000
"""Tensors and numbers of a distributed checkpoint that are looked at: a limit of time."""


class States:
    """The states of a training that rank 0 does not know yet."""

    def __init__(self) -> None:
        self.next_resume: Resume | None = None
        """The load after which the next step is one of the first; None without one."""
        self.is_resumed = False
        self.loaded: TrainingState | None = None
        """The load after which no backward has begun."""
        self._states: list[tuple[TrainingState, list[Tensor]]] = []
        """Each with the sums of its parts."""
        self.is_filled = False
        """Whether this process fills states that are there with what it loads."""
        self._rates_before: list[Any] = []
        self._at_load: dict[int, list[int]] = {}
        """By the id of a parameter, the sums of its bits and of its state after a load."""
        self._lost: dict[int, tuple[str, float]] = {}
        """By the id of a parameter, its name and steps, if a load has dropped its state."""
        self._outer: list[Any] = []
        self._watched: Sequence[Watched] | None = None

    def begin_load(self, optimizer: Any) -> None:
        """Note that the optimizer begins to load a state."""
        self._rates_before = rates(optimizer)

    def changes_rates(self, optimizer: Any) -> bool:
        """Whether the last load has changed the learning rates."""
        return rates(optimizer) != self._rates_before

    def load(self, step: int, optimizer: Any, path: str = "", is_promised: bool = False) -> None:
        """Note that the optimizer, or what trains with it, has loaded a state."""
        self._at_load = _sums_by_id(optimizer)
        if self.loaded is None or path or is_promised:
            self.loaded = TrainingState(RESUMED, step, path, stamp(path), 0.0, is_promised)
            self.loaded.rates = rates(optimizer)
            self.loaded.is_rate_kept = self.is_filled and self.loaded.rates == self._rates_before

    def note_set(
        self, optimizer: Any, model: torch.nn.Module, state: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Note whether the optimizer has a state of each weight whose state torch has loaded."""
        self._lost = {}
        for name, parameter in model.named_parameters():
            values = state.get(plain(name), {})
            has_moments = any(isinstance(one, Tensor) and one.dim() for one in values.values())
            if has_moments and not optimizer.state.get(parameter):
                self._lost[id(parameter)] = plain(name), float(values.get("step", 1))

    def begun_again(self, optimizer: Any) -> Alarm | None:
        """An alarm if the optimizer steps a weight without the state that a load has dropped."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        lost = [
            self._lost[id(one)]
            for one in parameters
            if id(one) in self._lost and one.grad is not None
            if float(optimizer.state.get(one, {}).get("step", 0)) < self._lost[id(one)][1]
        ]
        if not lost:
            return None
        self._lost = {}
        names = [name for name, _ in lost]
        text = (
            f"the optimizer begins again with {number_of(len(lost), 'parameter')}, such as "
            f"{names[0]}: the load has dropped a state of {lost[0][1]:.0f} steps"
        )
        return Alarm("checkpoints", "dropped", text, size=float(len(lost)), parameters=names)

    def save(
        self,
        step: int,
        optimizer: Any,
        watched: Sequence[Watched],
        path: str,
        begun: Sequence[Pass],
        orders: list[list[int]],
    ) -> None:
        """Note the state of a training that is saved, in the middle of the epochs ``begun``, or
        after epochs with these first batches; in one step once."""
        for state, _ in self._states:
            if (state.event, state.step) == (SAVED, step):
                state.path = path or state.path
                return
        state = TrainingState(
            SAVED, step, path, rates=rates(optimizer), begun=[*begun], orders=orders
        )
        self._note(state, optimizer, watched)

    def resume(self, optimizer: Any, watched: Sequence[Watched]) -> None:
        """Note the state with which a training goes on after a load."""
        state, self.loaded = self.loaded, None
        if state is not None:
            at_load, now = self._at_load, _sums_by_id(optimizer)
            keys = ((one.described.name, id(one.stepped)) for one in watched)
            state.changed = [name for name, key in keys if at_load.get(key) != now.get(key)]
            self._note(state, optimizer, watched)

    def _note(self, state: TrainingState, optimizer: Any, watched: Sequence[Watched]) -> None:
        if self._watched is not watched:
            self._watched, self._outer = watched, outer_optimizers(optimizer)
        state.count = steps_of(optimizer)
        self.add(state, list(_parts(optimizer, watched, self._outer)))

    def note_file(self, event: str, step: int, path: str, content: Any) -> None:
        """Note what is written to a distributed checkpoint, or was filled from it."""
        state = TrainingState(event, step, path, stamp(path) if event == FILLED else "")
        values = leaves(content)
        numbers = ((key, one) for key, one in values.items() if not isinstance(one, Tensor))
        state.numbers = dict(islice(numbers, MOST_NUMBERS))
        tensors = [(key, one) for key, one in values.items() if isinstance(one, Tensor)]
        self.add(state, [_part(key, "", _place(one), local(one)) for key, one in tensors])

    def note_gathered(
        self, step: int, optimizer: Any, watched: Sequence[Watched], path: str, content: Any
    ) -> None:
        """Note the weights and the optimizer's state in a file, by the names of parameters."""
        numels = _numels(watched)
        kinds = {str(name) for state in optimizer.state.values() for name in state} - {"step"}
        pairs = []
        for key, tensor in leaves(content).items():
            if not isinstance(tensor, Tensor) or _ranks_of_split(tensor) > 1:
                continue
            outer, _, last = key.rpartition(".")
            inner, kind = (outer, last) if last in kinds else (key, WEIGHT)
            if name := _parameter_of(inner, tensor, numels):
                pairs.append(_part(name, kind, "", local(tensor)))
        if pairs:
            self.add(TrainingState(GATHERED, step, path, count=steps_of(optimizer)), pairs)

    def note_weights(
        self, step: int, optimizer: Any, watched: Sequence[Watched], content: Any
    ) -> None:
        """Note the weights in a file, by the names of parameters, and whether it has others of all
        their sizes. Other optimizers than torch's may change weights in a mode of their own."""
        if not type(optimizer).__module__.startswith("torch.optim"):
            return
        numels = _numels(watched)
        others: set[int] = set()
        pairs = []
        for key, tensor in leaves(content, "param_groups").items():
            if isinstance(tensor, Tensor) and (name := _parameter_of(key, tensor, numels)):
                pairs.append(_part(name, WEIGHT, "", local(tensor)))
            elif isinstance(tensor, Tensor):
                others.add(tensor.numel())
        has_others = others >= {*numels.values()}
        if pairs or has_others:
            numbers = {"others": True} if has_others else {}
            self.add(TrainingState(FILED, step, numbers=numbers), pairs)

    def note_values(self, step: int, watched: Sequence[Watched], path: str, content: Any) -> None:
        """Note how many values are finite and not 0 of what a file gets as the weights of the
        whole model."""
        numels = _numels(watched)
        tensors = {
            key: one for key, one in leaves(content, "param_groups").items() if _is_whole(one)
        }
        sizes = {key: one.numel() for key, one in tensors.items()}
        places = (at for at in MAIN if all(sizes.get(at + n) == numels[n] for n in numels))
        place = next(places, None)
        pairs = []
        for name in numels if place is not None else ():
            flat = tensors[f"{place}{name}"].detach().reshape(-1)
            some = flat[:: max(1, len(flat) // SAMPLE)]
            count = (torch.isfinite(some) & (some != 0)).sum()
            pairs.append((Part(name, "", "", 1, "int64", 8), count))
        if pairs:
            self.add(TrainingState(MODEL, step, path), pairs)

    def note_parts(self, step: int, path: str, content: Any) -> None:
        """Note what a file gets of tensors that ranks split."""
        tensors = {key: one for key, one in leaves(content).items() if isinstance(one, Tensor)}
        shares = {key: _ranks_of_split(one) for key, one in tensors.items()}
        split = [key for key, ranks in shares.items() if ranks > 1]
        if split:
            numbers = {"names": split[:MOST_NAMES], "ranks": max(shares.values())}
            self.add(TrainingState(PARTED, step, path, numbers=numbers), [])

    def add(self, state: TrainingState, pairs: Sequence[tuple[Part, Tensor]]) -> None:
        """Note a state, with the tensors of its parts."""
        sums: list[Tensor] = []
        for part, tensor in pairs:
            try:
                sums.append(value_sum(tensor))
            except (RuntimeError, TypeError, NotImplementedError):
                continue  # a kind of tensors that has no bits, such as a quantized one
            state.parts.append(list(vars(part).values()))
        self._states.append((state, sums))

    def describe(self, post: Post) -> None:
        """Add the states to a post, with the sums of all their parts."""
        pairs, self._states = self._states, []
        if pairs:
            post.states = [state for state, _ in pairs]
            post.tensors["states"] = stacked([one for _, sums in pairs for one in sums])

    def take_saves(self, others: States) -> None:
        """Add the saves of another training, which perhaps takes no more steps, in front."""
        saves = [pair for pair in others._states if pair[0].event in SAVES]
        others._states = [pair for pair in others._states if pair[0].event not in SAVES]
        self._states[:0] = saves

    def __bool__(self) -> bool:
        return bool(self._states)


def stamp(path: str) -> str:
    """What tells a checkpoint from another one at the same path; empty if there is none."""
    try:
        names = [path]
        if os.path.isdir(path):
            names = [os.path.join(path, name) for name in sorted(os.listdir(path))[:1]]
        status = [os.stat(name) for name in names if path]
    except OSError:
        return ""
    return " ".join(f"{one.st_size} {one.st_mtime_ns}" for one in status)


def leaves(content: Any, left_out: str = "") -> dict[str, Any]:
    """The tensors, numbers and texts in nested dicts and lists, by their path, but for those of
    dicts with the key ``left_out``."""
    return dict(islice(_leaves(content, (), left_out), MOST_LEAVES))


def _leaves(value: Any, path: tuple[str, ...], left_out: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        items: Iterable[tuple[Any, Any]] = () if left_out and left_out in value else value.items()
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    else:
        is_short = isinstance(value, str) and len(value) <= MOST_LETTERS
        if _has_bits(value) or type(value) in (int, float, bool) or is_short:
            yield ".".join(path), value
        return
    for key, inner in items:
        yield from _leaves(inner, (*path, str(key)), left_out)


def _numels(watched: Iterable[Watched]) -> dict[str, int]:
    """How many values the parameters of the optimizer have, by their names."""
    described = (one.described for one in watched)
    return {one.name: one.numel for one in described if one.optimized}


def _parameter_of(path: str, tensor: Tensor, numels: Mapping[str, int]) -> str:
    """The parameter with whose name the path of a tensor in a file ends; empty if it has another
    size."""
    while path and path not in numels:
        path = path.partition(".")[2]
    return path if numels.get(path) == tensor.numel() else ""


def _ranks_of_split(tensor: Any) -> int:
    """Of how many ranks the parts make the whole tensor."""
    ranks = 1
    mesh: Any = getattr(tensor, "device_mesh", None)
    for dim, placement in enumerate(tensor.placements if mesh is not None else ()):
        ranks *= mesh.size(dim) if placement.is_shard() else 1
    return ranks


def _place(tensor: Any) -> str:
    """Which part of a tensor that ranks split this one has; empty if it has all of it."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return ""
    coordinate = mesh.get_coordinate() or ()
    return " ".join(
        "" if placement.is_replicate() else f"{dim}:{place}"
        for dim, (placement, place) in enumerate(zip(tensor.placements, coordinate))
    )


def _parts(
    optimizer: Any, watched: Iterable[Watched], outer: Iterable[Any]
) -> Iterator[tuple[Part, Tensor]]:
    states = {f"{type(one).__name__}{OUTER}": vars(one)["state"] for one in outer}
    states[""] = optimizer.state
    for entry in watched:
        described = entry.described
        yield _part(described.name, WEIGHT, described.copy, entry.copy)
        if not described.optimized:
            continue
        place = f"{described.copy} {described.begin} {described.end}"
        if entry.share.master is not None:
            yield _part(described.name, COPY, place, entry.weight)
        stepped = entry.stepped
        for owner, state in states.items():
            values = state.get(stepped)
            for name, value in values.items() if isinstance(values, dict) else ():
                if _has_bits(value) and (
                    (value.shape == stepped.shape and value.dim() > 0)
                    or (entry.share.master is None and value.numel() > 1)  # it is no count
                ):
                    kind = f"{owner}{name}"
                    yield _part(described.name, kind, place, entry.of_stepped(value))


def _is_whole(value: Any) -> bool:
    return type(value) in (Tensor, torch.nn.Parameter)


def _has_bits(value: Any) -> bool:
    """Whether it is a tensor of torch whose values this rank has, all of them or a part."""
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    is_usual = _is_whole(value) or local(value) is not value
    return is_usual and value.device.type != "meta" and not value.is_quantized


def _part(name: str, kind: str, place: str, tensor: Any) -> tuple[Part, Tensor]:
    width = tensor.element_size() // (2 if tensor.is_complex() else 1)
    dtype = str(tensor.dtype)[len("torch.") :]
    return Part(name, kind, place, tensor.numel(), dtype, width), tensor


def value_sum(tensor: Tensor) -> Tensor:
    """The sum of the bits of all values: that of a whole is that of its parts."""
    flat = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    integers = flat.view(INTEGERS[flat.element_size()])
    return integers.sum(dtype=integers.dtype).long()


def _sums_by_id(optimizer: Any) -> dict[int, list[int]]:
    """By the id of a parameter, the sums of its bits and of its state."""
    tensors: dict[int, list[Any]] = {}
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        state = optimizer.state.get(parameter, {})
        values = [parameter, *(state.values() if isinstance(state, dict) else ())]
        tensors[id(parameter)] = [local(one) for one in values if _has_bits(one)]
    return {key: [int(value_sum(one)) for one in values] for key, values in tensors.items()}


def outer_optimizers(optimizer: Any) -> list[Any]:
    """What wraps an optimizer and keeps tensors for its parameters, as Lookahead does: found among
    all objects of the process, which takes a while."""
    parameter = next((p for group in optimizer.param_groups for p in group["params"]), None)
    outer = []
    for candidate in living(lambda kind: hasattr(kind, "step") and hasattr(kind, "state_dict")):
        attributes = getattr(candidate, "__dict__", {})
        state = attributes.get("state")
        if attributes.get("optimizer") is optimizer and isinstance(state, Mapping):
            outer += [candidate] if isinstance(state.get(parameter), dict) else []
    return outer
