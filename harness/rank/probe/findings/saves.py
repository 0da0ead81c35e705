"""What a script saves and evaluates is what it has trained.

A file may have an average, an earlier state, or weights that the loop has clamped since the step.
But weights in which no step shows, although steps have moved the model, are those of an average
that has not begun, or of a copy that nobody updates. A reference, a teacher or the best weights may
have them on purpose, and an average lags: it is noted only after several steps.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from harness.rank import events
from harness.rank.probe.exchange import FILES
from harness.rank.probe.recording.parameters import NamedParameters
from harness.rank.training.layouts import local, plain

SAVED, EVALUATED = "a checkpoint has the first weights", "an evaluation uses the first weights"
"""How the notes begin: by these words a recorded note is recognised."""

DEEP = 4
"""How far a saved object is searched."""

HALF = 0.5
"""The part of the trained weights that saved ones must have to be compared."""

OTHERS = re.compile(r"ema|averag|shadow|swa|teacher|target|ref|init|best|old|prev", re.IGNORECASE)
"""Matches the names of weights that need not be those that were trained."""

AVERAGE = re.compile(r"(?<![a-zA-Z])(ema|avg)|E(MA|ma)(?![a-z])|[Aa]verage|[Ss]hadow")
"""Matches the names of averages, which every few steps move."""

ON_PURPOSE = re.compile(r"teacher|target|ref|init|best|old|prev|swa", re.IGNORECASE)
"""Matches the names of weights that may be those of the beginning."""

SEVERAL = 3
"""After so many steps an average must have moved."""

LONGEST = 1000
"""How many entries of a saved sequence are searched."""

PLAIN = (int, float, str)
"""What holds no tensors, and may be there a million times."""

MOST = 1000
"""How many modules, sequences and mappings of a saved object are searched: a list of lists may have
a million."""

MOVED = (
    "although {} steps have moved the model: is an average never updated? No fault if that begins "
    "later, or if the weights of the beginning are meant"
)

Weights = Mapping[str, Any]
"""Tensors by the names of parameters."""


class Saves:
    """Compares what is saved and evaluated with the weights after the last step, and with those
    before the first."""

    def __init__(self, names: NamedParameters, is_compared: bool = False) -> None:
        self._names = names
        self._is_compared = is_compared
        """Whether what this rank saves is compared with what the reference saves."""
        self._first: Weights = {}
        self._last: Weights = {}
        self._steps = 0
        self._evaluated = 0
        """After how many steps an evaluation was looked at."""
        self._averages: dict[str, int] = {}
        """By the place of an average in what is saved, after how many steps it had the first
        weights; 0 once it has others."""
        self._files: dict[str, tuple[int, str]] = {}
        """By file, after how many steps it was written, and where it has the first weights; empty
        if it has what was trained."""
        self._notes: list[str] = []
        self.entries: list[tuple[int, str, str, float]] = []
        """After how many steps, into which file, and where in it, weights were saved; and how far
        from the trained ones, as a part of the way of all steps."""

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""
        on = events.instrument.on
        on(events.Gradients, before=self._before_step)
        on(events.Step, after=self._after_step)
        on(events.Save, before=self._save)
        on(events.SavedTensors, before=self._save)

    def report(self) -> list[str]:
        """A line on the last checkpoint, and a line on an evaluation, if they are wrong."""
        count = max((steps for steps, _ in self._files.values()), default=0)
        places = [place for steps, place in self._files.values() if steps == count]
        if places and all(places):
            self._notes.insert(0, f"{SAVED} ({places[0]}), {MOVED.format(count)}")
        elif place := next((place for place, steps in self._averages.items() if steps), ""):
            steps = self._averages[place]
            self._notes.insert(0, f"{SAVED} ({place}), {MOVED.format(steps)}")
        return self._notes

    def evaluate(self, module: Any) -> None:
        """A module is called without training. If it is the model, look at its weights, once after
        each step."""
        is_model = id(next(module.parameters(), None)) in self._names.names
        if self._notes or not is_model or self._evaluated == self._steps:
            return
        self._evaluated = self._steps
        if self._is_of_beginning(self._trained()):
            self._notes.append(f"{EVALUATED}, {MOVED.format(self._steps)}")

    def _before_step(self, event: events.Gradients) -> None:
        if not self._first:
            self._first = _copies(self._trained())

    def _after_step(self, event: events.Step) -> None:
        if self._first and not event.skips:
            self._steps += 1
            self._last = _copies(self._trained())

    def _trained(self) -> Weights:
        return {name: p for name, p in self._names.items() if p.requires_grad}

    def _save(self, event: events.Save) -> None:
        if not self._last or event.of_engine:
            return
        places = {}
        for where, mapping in mappings(event.state, self._last):
            weights = matching(mapping, self._last)
            if weights:
                places[where] = self._is_of_beginning(weights)
            if self._is_compared:
                self._note(event.path, where, weights or matching(mapping, self._last, HALF))
        for where, is_first in places.items():
            name = os.path.basename(event.path) if where == WHOLE else where
            if AVERAGE.search(name) and not ON_PURPOSE.search(name):
                is_late = self._steps >= SEVERAL and is_first
                self._averages[name] = self._steps if is_late else 0
        if places:
            first_places = (where for where, is_first in places.items() if is_first)
            unnamed = (where for where in first_places if not OTHERS.search(where))
            self._files[event.path or f"file {len(self._files)}"] = self._steps, next(unnamed, "")

    def _note(self, path: str, where: str, weights: Weights) -> None:
        """Note weights that are saved, if there are any that can be compared: others are parts, of
        this rank or gathered."""
        squares = way = 0.0
        for name, weight in weights.items():
            tensor, last = local(weight).detach().cpu(), self._last[name].cpu()
            first = self._first.get(name, last).cpu()
            if tensor.shape == last.shape == first.shape:
                squares += float((tensor.float() - last.to(tensor.dtype).float()).norm()) ** 2
                way += float((last.float() - first.float()).norm()) ** 2
        if not way:
            return
        folder, file = os.path.split(path)  # its folder tells apart files of one name
        name = os.path.basename(folder)
        is_usual = name in ("", FILES) or folder == os.getcwd()
        title = file if is_usual else f"{name}/{file}"
        self.entries.append((self._steps, title, where, (squares / way) ** 0.5))

    def _is_of_beginning(self, weights: Weights) -> bool:
        """Whether weights are those before the first step, and were moved since."""
        moved_names = [
            name
            for name, first in self._first.items()  # another model may be trained later
            if name in self._last and not _are_equal(self._last[name], first)
        ]
        weights = {name: weights[name] for name in moved_names if name in weights}
        return bool(weights) and all(
            _are_equal(local(weight), self._first[name]) for name, weight in weights.items()
        )


def _copies(weights: Weights) -> Weights:
    return {name: local(weight).detach().clone() for name, weight in weights.items()}


def _are_equal(tensor: Any, other: Any) -> bool:
    import torch

    return tensor.shape == other.shape and torch.equal(
        tensor.detach().cpu(), other.to("cpu", tensor.dtype)
    )


WHOLE = "the file"


def mappings(value: Any, trained: Weights, deep: int = DEEP) -> Iterator[tuple[str, Weights]]:
    """The mappings in a saved object that have tensors, with their places: also modules, and lists
    with a tensor for each that is trained, as averages keep them. The outer ones come first."""
    import torch

    waiting = deque([("", value, 0)])
    for _ in range(MOST):
        if not waiting:
            return
        where, value, depth = waiting.popleft()
        parts: list[tuple[str, Any]] = []
        if isinstance(value, torch.nn.Module):
            yield where or WHOLE, {plain(name): p for name, p in value.named_parameters()}
        elif isinstance(value, (list, tuple)):
            entries = list(islice(value, LONGEST))
            if len(entries) == len(trained) and all(is_tensor(e) for e in entries):
                yield where or WHOLE, dict(zip(trained, entries, strict=True))
            else:
                parts = [(str(n), e) for n, e in enumerate(entries) if not isinstance(e, PLAIN)]
        elif isinstance(value, Mapping):
            parts = [(name, entry) for name, entry in value.items() if isinstance(name, str)]
            tensors = {plain(n): entry for n, entry in parts if is_tensor(entry)}
            if tensors:
                yield where or WHOLE, tensors
        if depth + 1 < deep and len(waiting) < MOST:
            waiting += [(f"{where}.{name}".strip("."), part, depth + 1) for name, part in parts]


def is_tensor(value: Any) -> bool:
    import torch

    return issubclass(type(value), torch.Tensor)  # isinstance would ask a lazy object


def matching(mapping: Weights, weights: Weights, part: float = 1.0) -> Weights:
    """The tensors of a mapping by the names of ``weights``, whatever precedes its keys, or these
    names; empty unless it has at least this part of them."""
    by_prefix: dict[tuple[bool, str], dict[str, Any]] = {}
    for longer, shorter, is_key in ((mapping, weights, True), (weights, mapping, False)):
        for title in longer:
            for at in (0, *(n for n, letter in enumerate(title, 1) if letter == ".")):
                key, name = (title, title[at:]) if is_key else (title[at:], title)
                if title[at:] in shorter and mapping[key].shape == weights[name].shape:
                    by_prefix.setdefault((is_key, title[:at]), {})[name] = mapping[key]
                    break
    tensors = max(by_prefix.values(), key=len, default={})
    return tensors if len(tensors) >= part * len(weights) else {}
