"""A training goes on after a load with what was trained when the checkpoint was saved.

Which of the saved states was loaded is seen by what the optimizer keeps: moments that are equal bit
by bit are those of that save, wherever the file is and whatever wrote it. So a load of other
weights, or of weights alone, is compared with none. If a package loads a checkpoint of the whole
training, equal weights or its folder say which one it is, too, as does the folder from which torch
fills a state.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....detectors.arithmetic import NOISE
from ..posting.posts import Alarm, Part, Pass, Post, TrainingState
from ..states.training_states import (
    COPY,
    FILED,
    FILLED,
    MODEL,
    OUTER,
    PARTED,
    RESUMED,
    SAVED,
    SAVES,
    WEIGHT,
    WRITTEN,
    stamp,
)
from .samples import of_ranks
from .views import Memory, View, named

MOST_SAVED = 16
"""Saved states that are kept."""


@dataclass
class Whole:
    """A tensor on all ranks."""

    count: int
    dtype: str
    sum: int
    places: str
    """A digest of the places of its parts, ..."""
    exact: str
    """... and one of the places with the sum of each part."""
    odd: list[int] = field(default_factory=list)
    """The ranks that have other values than the first rank of the same place."""

    def is_comparable(self, later: Whole) -> bool:
        """Whether it was one thing on all ranks, and was neither converted nor cut since."""
        return self.count == later.count and self.dtype == later.dtype and not self.odd

    def is_equal(self, later: Whole) -> bool:
        """Whether it is the same later, perhaps on another number of ranks."""
        if later.odd:
            return False
        return self.exact == later.exact if self.places == later.places else self.sum == later.sum


@dataclass
class State(TrainingState):
    """What was trained, written or read, on all ranks that took part. ``begun`` has the epochs of
    all of them, and ``orders`` those of the first one."""

    wholes: dict[str, dict[str, Whole]] = field(default_factory=dict)
    """By the name of a parameter, and by kind."""
    ranks: list[int] = field(default_factory=list)
    is_of_this_process: bool = True
    is_in_files: bool = False
    """At a save, whether files got these weights, and no others."""

    def to_json(self) -> dict[str, Any]:
        wholes = {
            name: {kind: list(vars(whole).values()) for kind, whole in kinds.items()}
            for name, kinds in self.wholes.items()
        }
        return {**vars(self), "wholes": wholes, "begun": [vars(one) for one in self.begun]}

    @staticmethod
    def of_json(content: dict[str, Any]) -> State:
        wholes = {
            name: {kind: Whole(*fields) for kind, fields in kinds.items()}
            for name, kinds in content["wholes"].items()
        }
        begun = [Pass(**one) for one in content["begun"]]
        fields = {**content, "wholes": wholes, "begun": begun, "is_of_this_process": False}
        return State(**fields)

    def is_loaded_by(self, later: State) -> bool:
        """Whether a load reads the file that this save has written."""
        if not later.path or later.path not in (self.path, os.path.dirname(self.path)):
            return False
        stamps = later.stamp if later.path == self.path else stamp(self.path)
        return self.is_of_this_process or bool(self.stamp and self.stamp == stamps)

    def pairs(
        self, later: State, is_kind: Callable[[str], bool]
    ) -> Iterator[tuple[str, Whole, Whole | None]]:
        """The parameters of both, with each tensor of some kinds that this state has of them, and
        what it is later: None if it is gone."""
        for name, kinds in self.wholes.items():
            later_kinds = later.wholes.get(name)
            for kind, whole in kinds.items() if later_kinds is not None else ():
                other = (later_kinds or {}).get(kind)
                if is_kind(kind) and (other is None or whole.is_comparable(other)):
                    yield name, whole, other

    def unequal(self, later: State, is_kind: Callable[[str], bool]) -> list[str]:
        """The parameters of which something is not the same later, and the loop has not written
        since a load: it may begin a layer anew, or normalise it."""
        pairs = self.pairs(later, is_kind)
        names = (n for n, old, new in pairs if (old.sum if new is None else not old.is_equal(new)))
        return list(dict.fromkeys(name for name in names if name not in later.changed))

    @property
    def when(self) -> str:
        return f"saved after {self.count or self.step:.0f} steps"


def checkpoints(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """A training goes on with what was saved."""
    posts = [view.post for view in views]
    yield from _parted(posts)
    states = [_merged(members) for members in _events(posts)]
    for state in states:
        if state.event in SAVES:
            state.is_in_files = _is_in_files(state, states)
            memory.saved.append(state)
            del memory.saved[:-MOST_SAVED]
            memory.has_saved = True
        elif state.event == FILLED:
            yield from _filled(state, memory)
        elif state.event == RESUMED:
            yield from _resumed(state, memory)
    for state in states:
        if state.event == MODEL:
            yield from _empty(state, memory)


def _empty(state: State, memory: Memory) -> Iterator[Alarm]:
    """A file of the whole model, in a step whose save has weights, has some, too."""
    has_values = any(whole.sum for kinds in state.wholes.values() for whole in kinds.values())
    saves = (one for one in memory.saved if (one.event, one.step) == (SAVED, state.step))
    weights = (pair for one in saves for pair in one.pairs(one, _is_weight))
    if not has_values and any(whole.sum for _, whole, _ in weights):
        names, file = list(state.wholes), os.path.basename(state.path) or "a file"
        text = f"{file} got no value of {named(names)}: all are 0 or not finite"
        yield Alarm("checkpoints", "empty", text, state.ranks, 1.0, names, state.step)


def _is_in_files(saved: State, states: Sequence[State]) -> bool:
    """Whether the files that were written in the step of a save have the weights that are trained,
    and no others: an average of the weights has their names or sizes, too."""
    files = [one for one in states if (one.event, one.step) == (FILED, saved.step)]
    trained = {name for name, whole, _ in saved.pairs(saved, _is_inner) if whole.sum}
    filed = [
        (saved.wholes.get(name, {}), kinds) for file in files for name, kinds in file.wholes.items()
    ]
    return (
        bool(filed)
        and trained <= {name for file in files for name in file.wholes}
        and not any(file.numbers for file in files)
        and all(
            WEIGHT in old and old[WEIGHT].is_comparable(new) and old[WEIGHT].is_equal(new)
            for old, kinds in filed
            for new in kinds.values()
        )
    )


Member = tuple[int, TrainingState, list[int]]
"""A rank, its state, and the sums of the parts."""


def _events(posts: Iterable[Post]) -> Iterator[list[Member]]:
    """The saves and loads, each with the ranks that took part, in their order on the first rank."""
    groups: dict[tuple[Any, ...], list[Member]] = {}
    for post in posts:
        sums: Any = post.tensors.get("states")
        at, times = 0, dict[Any, int]()
        for state in post.states if sums is not None else ():
            if state.event == PARTED:
                continue
            begin, at = at, at + len(state.parts)
            numbers = sums[begin:at].tolist()
            # Each rank may save a file of its own.
            path = "" if state.event == SAVED else state.path
            key = state.step, state.event, path
            times[key] = times.get(key, 0) + 1
            groups.setdefault((*key, times[key]), []).append((post.rank, state, numbers))
    yield from groups.values()


def _merged(members: Sequence[Member]) -> State:
    parts: dict[tuple[str, str], dict[str, tuple[Part, int]]] = {}
    odd: dict[tuple[str, str], list[int]] = {}
    for rank, state, numbers in members:
        for part, number in state.of_parts(numbers):
            key = part.name, part.kind
            first = parts.setdefault(key, {}).setdefault(part.place, (part, number))
            if first[1] != number:
                odd.setdefault(key, []).append(rank)
    wholes: dict[str, dict[str, Whole]] = {}
    for (name, kind), places in parts.items():
        any_part = next(iter(places.values()))[0]
        wholes.setdefault(name, {})[kind] = Whole(
            sum(part.count for part, _ in places.values()),
            any_part.dtype,
            sum(number for _, number in places.values()) % (1 << 8 * any_part.width),
            _digest(sorted(places)),
            _digest(sorted((place, number) for place, (_, number) in places.items())),
            odd.get((name, kind), []),
        )
    first_state = members[0][1]
    common = {
        key: value
        for key, value in first_state.numbers.items()
        if all(state.numbers.get(key) == value for _, state, _ in members)
    }
    begun = _begun([state.begun for _, state, _ in members])
    fields = {**vars(first_state), "parts": [], "numbers": common, "begun": begun}
    return State(**fields, wholes=wholes, ranks=[rank for rank, *_ in members])


def _begun(by_rank: Sequence[Sequence[Pass]]) -> list[Pass]:
    """The epochs in which the ranks were, if each rank was in one epoch of so many rows, and no row
    came twice."""
    by_size: dict[int, list[Pass]] = {}
    for begun in by_rank:
        for one in begun:
            by_size.setdefault(one.size, []).append(one)
    merged = [of_ranks(passes) for passes in by_size.values() if len(passes) == len(by_rank)]
    return [one for one in merged if len(set(one.sampled)) == len(one.sampled)]


def _digest(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()


def _parted(posts: Sequence[Post]) -> Iterator[Alarm]:
    """All ranks that split a tensor save their parts of it."""
    ranks: dict[int, set[int]] = {}
    first: dict[int, TrainingState] = {}
    for post in posts:
        for state in post.states:
            if state.event == PARTED:
                ranks.setdefault(state.step, set()).add(post.rank)
                first.setdefault(state.step, state)
    for step, those in ranks.items():
        state = first[step]
        names, needed = state.numbers["names"], state.numbers["ranks"]
        if len(those) < min(needed, len(posts)):
            text = (
                f"{os.path.basename(state.path) or 'a file'} got only this rank's part of "
                f"{named(names)}, and the other ranks, {needed} in all, save nothing"
            )
            yield Alarm("checkpoints", "parts", text, sorted(those), 1 / needed, names, step)


def _filled(state: State, memory: Memory) -> Iterator[Alarm]:
    """What torch fills from a distributed checkpoint is what it was given to write."""
    candidates = (one for one in reversed(memory.saved) if one.event == WRITTEN)
    saved = next((one for one in candidates if one.is_loaded_by(state)), None)
    if saved is None:
        return
    memory.compared["checkpoints"] = len(saved.wholes)
    file, differing = os.path.basename(state.path), saved.unequal(state, lambda _: True)
    if differing:
        text = f"{file} has other values of {named(differing)} than those that were {saved.when}"
        yield Alarm("checkpoints", "file", text, state.ranks, float(len(differing)), differing)
    kept = [
        key
        for key, value in saved.numbers.items()
        if key in state.numbers and repr(state.numbers[key]) != repr(value)  # nan is nan
    ]
    if kept:
        now, before = state.numbers[kept[0]], saved.numbers[kept[0]]
        others = f", and {len(kept) - 1} more differ" if kept[1:] else ""
        text = f"the load of {file} gave {now} for {kept[0]}, and {before} was {saved.when}{others}"
        yield Alarm("checkpoints", "numbers", text, state.ranks, float(len(kept)))


def _resumed(state: State, memory: Memory) -> Iterator[Alarm]:
    """The training goes on with what was trained at the save."""
    candidates = [one for one in memory.saved if one.event != WRITTEN]
    saved = max(candidates, key=lambda one: _likeness(one, state), default=None)
    is_whole = saved is not None and _likeness(saved, state) > 0
    asked = next((one for one in reversed(candidates) if one.is_loaded_by(state)), None)
    is_by_engine = is_whole and "by_engine" in state.numbers
    is_other = saved is not None and is_by_engine and not saved.is_loaded_by(state)
    if saved and asked and is_other and asked.unequal(state, _is_weight):
        first, second = (os.path.basename(one.path) for one in (asked, saved))
        text = f"after the load of {first} the weights are those of {second}, {saved.when}"
        yield Alarm("checkpoints", "path", text, state.ranks)
        return
    if not is_whole:
        saved, is_whole = asked, state.is_promised
    if saved is None:
        kinds = {kind for kinds in state.wholes.values() for kind in kinds}
        if any(map(_is_inner, kinds)):
            memory.not_seen["checkpoints"] = (
                "the loaded state is compared with none: its save was not seen in this folder"
            )
        return
    memory.compared["checkpoints"] = sum(map(len, saved.wholes.values()))
    memory.data.begun, memory.data.passes = saved.begun, {}
    memory.data.orders = saved.orders if state.is_promised else []
    yield from _rate(saved, state)
    lost = saved.unequal(state, lambda kind: not _is_weight(kind)) if is_whole else []
    if lost:
        text = f"after the load the optimizer's state of {named(lost)} is not the one {saved.when}"
        yield Alarm("checkpoints", "state", text, state.ranks, float(len(lost)), lost)
    # Within a process a loop may go back to other weights, with the optimizer's last state.
    is_filed = saved.is_in_files and not saved.is_of_this_process
    is_kept = state.numbers.get("kept", False)
    is_kind = _is_weight if is_whole or is_kept else WEIGHT.__eq__
    weights = list(saved.pairs(state, is_kind))
    differing = saved.unequal(state, is_kind)
    if differing and len(differing) < len({name for name, *_ in weights}):
        verb = "is" if len(differing) == 1 else "are"
        text = f"after the load {named(differing)} {verb} not what was {saved.when}"
        odd = {rank for _, _, now in weights if now is not None for rank in now.odd}
        yield Alarm("checkpoints", "weights", text, sorted(odd) or state.ranks, 1.0, differing)
    elif (
        differing
        and (state.is_promised or is_filed or is_kept)
        and not _equal([(old, new) for _, old, new in weights])
    ):
        text = f"after the load no weight is what was {saved.when}"
        yield Alarm("checkpoints", "weights", text, state.ranks, 1.0, differing)
    elif differing:
        memory.not_seen["checkpoints"] = (
            "the loaded weights are compared with none: they are not those of the training that "
            "saved the optimizer's state, as if an average of them was saved"
        )


def _rate(saved: State, state: State) -> Iterator[Alarm]:
    """The rates that a load leaves as they were are those of the save."""
    kept = [w.sum for ks in saved.wholes.values() for kind, w in ks.items() if _is_inner(kind)]
    if not any(kept) or not state.is_rate_kept or len(saved.rates) != len(state.rates):
        return  # without moments only the weights may have been loaded
    for before, now in zip(saved.rates, state.rates):
        if before is not None and now is not None and abs(before - now) > NOISE * abs(before):
            text = (
                f"the load left the learning rate {now:.4g} as it was before, and {before:.4g} was "
                f"{saved.when}"
            )
            yield Alarm("checkpoints", "rate", text, state.ranks, abs(before - now))
            return


def _likeness(saved: State, state: State) -> int:
    """How many tensors of a load are those of a save; 0 if it is a load of something else.

    The optimizer's own state decides. If there is none, as with SGD, all weights do, or half of
    them if the load was to give back all; so do all that were trained if their state is lost in
    such a load. A new training may begin with some of the weights.
    """
    moments = [(old, new) for _, old, new in saved.pairs(state, _is_inner) if old.sum]
    weights = [(old, new) for _, old, new in saved.pairs(state, _is_weight) if old.sum]
    equal, equal_weights = _equal(moments), _equal(weights)
    if not moments and not state.is_promised:
        return equal_weights if equal_weights == len(weights) else 0
    decide, equals = (moments, equal) if moments else (weights, equal_weights)
    if 2 * equals >= len(decide) > 0:
        return equal + equal_weights
    trained = {name for name, old, _ in saved.pairs(state, _is_inner) if old.sum}
    pairs = [(old, new) for n, old, new in saved.pairs(state, WEIGHT.__eq__) if n in trained]
    return equal_weights if state.is_promised and _equal(pairs) == len(pairs) > 0 else 0


def _equal(pairs: Sequence[tuple[Whole, Whole | None]]) -> int:
    return sum(new is not None and old.is_equal(new) for old, new in pairs)


def _is_weight(kind: str) -> bool:
    return kind in (WEIGHT, COPY)


def _is_inner(kind: str) -> bool:
    """Whether it is kept by the optimizer itself, and not by one around it."""
    return not _is_weight(kind) and OUTER not in kind
