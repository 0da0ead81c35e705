"""The random numbers with which the workers of a loader begin: each worker, and each epoch, must
draw others.

A worker is another process, and nobody asks it anything. It writes into memory that the process
that trains shares with it: the states of the generators from which its first two batches have
drawn, before they drew. What only the first one draws may be a table that a dataset makes once,
with one seed on purpose. A worker looks among the open files of the process that trains for memory
with the seed of the loader's workers, however it was started: nobody else can put something there,
and nothing is left.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import random
import sys
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from multiprocessing.process import parent_process
from typing import Any

import torch

from ..posting.posts import Alarm

SLOT = 1024
"""Bytes of a worker in the shared memory."""
MOST_PARTS, MOST_OBJECTS = 16, 200
"""Elements of a list, and objects of a dataset, among which its generators are searched: limits of
time."""
MOST_TWISTS = 4096
"""How often the state of a Mersenne Twister is followed: 2.6 million numbers. A test draws
100,000."""
SEED_BYTES = 8
"""With these a state of torch's generator begins, before what it draws from."""
WORDS = 624
"""Words of 32 bits in its state."""

SOURCES = "the choice of sources"
"""How the names of generators begin with which a stream chooses its sources."""

States = Mapping[str, str]
"""By the name of a generator, a digest of its state."""


class WorkerNumbers:
    """The random numbers of all loaders' workers, in the process that trains and in the workers."""

    def __init__(self) -> None:
        self._slots: weakref.WeakKeyDictionary[Any, mmap.mmap] = weakref.WeakKeyDictionary()
        self._files: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """By iterator, what closes the file of its memory."""
        self._memory: mmap.mmap | None = None
        """In a worker, that of its loader, until it has read two batches."""
        self._has_joined = False
        """Whether this is a worker that has looked for it."""
        self._before: dict[str, Any] = {}
        self._between: dict[str, Any] | None = None
        """The states after the first batch, of generators from which it has drawn."""
        self._sources: dict[str, str] = {}
        """In a worker, the states with which streams choose their sources."""

    def begin(self, iterator: Any) -> None:
        """Share memory with the workers that an iterator is about to start: an open file, until the
        iterator is compared. Another loader with the same seed may have it."""
        workers, process = getattr(iterator, "_num_workers", 0), os.getpid()
        seed = getattr(iterator, "_base_seed", None)
        if not workers or seed is None or not hasattr(os, "memfd_create") or _path(process, seed):
            return
        try:
            file = os.memfd_create(NAME.format(process, seed))
            self._files[iterator] = weakref.finalize(iterator, os.close, file)
            # Where memory is full, a write into a hole would end a worker.
            os.posix_fallocate(file, 0, SLOT * workers)
            self._slots[iterator] = mmap.mmap(file, SLOT * workers)
        except OSError:
            self.forget(iterator)

    def worker_begins(self, dataset: Any) -> None:
        """In a worker: share the memory of its loader, and note the states before anything is
        read."""
        worker, parent = torch.utils.data.get_worker_info(), parent_process()
        if self._has_joined or worker is None or parent is None:
            return
        self._has_joined = True
        with contextlib.suppress(Exception):  # such as no file: nobody compares its loader
            file = os.open(_path(parent.pid or 0, worker.seed - worker.id), os.O_RDWR)
            try:
                self._memory = mmap.mmap(file, SLOT * worker.num_workers)
            finally:
                os.close(file)
            self._before = _states(dataset)

    def worker_mixes(self, generator: Any) -> None:
        """In a worker: note the state of a generator with which a stream chooses its sources."""
        if self._memory is not None and (state := state_of(generator)) is not None:
            self._sources[f"{SOURCES} {len(self._sources) + 1}"] = _digest(state)

    def worker_has_read(self, dataset: Any) -> None:
        """In a worker: share the states from which the first two batches have drawn."""
        worker = torch.utils.data.get_worker_info()
        if self._memory is not None and worker is not None:
            with contextlib.suppress(Exception):  # a worker reports nothing
                self._share(dataset, worker.id, self._memory)

    def _share(self, dataset: Any, worker: int, memory: mmap.mmap) -> None:
        last = self._before if self._between is None else self._between
        now = _states(dataset)
        drawn = {name: now[name] for name in last.keys() & now if has_drawn(last[name], now[name])}
        if self._between is None:
            self._between = drawn
            return
        self._memory = None
        states, self._sources = self._sources, {}
        for name in drawn:
            before = self._before[name]  # half of a seed of torch may be without effect
            states[name] = _digest(before[2] if before[0] == "torch" else before)
        self._before, self._between = {}, None
        text, start = json.dumps(states).encode(), SLOT * worker
        if len(text) < SLOT:
            memory[start + 1 : start + 1 + len(text)] = text
            memory[start] = 1  # only now may the other process read it

    def of(self, iterator: Any) -> dict[int, States]:
        """By worker, the states of an iterator's workers that have read a batch."""
        memory = self._slots.get(iterator)
        if memory is None:
            return {}
        slots = (memory[at : at + SLOT] for at in range(0, len(memory), SLOT))
        texts = {worker: slot[1:].rstrip(b"\0") for worker, slot in enumerate(slots) if slot[0]}
        return {worker: json.loads(text) for worker, text in texts.items()}

    def forget(self, iterator: Any) -> None:
        """Let go of the memory of an iterator that has been compared."""
        self._slots.pop(iterator, None)
        if (remove := self._files.pop(iterator, None)) is not None:
            remove()


NAME = "guard-workers-{}-{}"
"""Of the memory of a process for workers with a seed."""


def _path(process: int, seed: int) -> str:
    """The memory of a process for workers with a seed, as a path; empty if there is none."""
    folder, target = f"/proc/{process}/fd", f"/memfd:{NAME.format(process, seed)} (deleted)"
    with contextlib.suppress(OSError):
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):  # another thread has closed it
                if os.readlink(f"{folder}/{number}") == target:
                    return f"{folder}/{number}"
    return ""


EpochDraws = tuple[int, Mapping[int, States]]
"""The number of an epoch, and by worker the states with which it began."""


def compared_draws(
    before: EpochDraws | None, epoch: int, workers: Mapping[int, States], of_stream: bool
) -> Alarm | None:
    """Compare the random numbers of one loader's workers in an epoch with each other, and with
    those of the epoch before. Workers may shuffle a stream alike, but then they must not choose its
    sources alike."""
    choices = {
        worker: {name: state for name, state in states.items() if name.startswith(SOURCES)}
        for worker, states in workers.items()
    }
    alarm = _of_one_epoch(choices if of_stream else workers)
    if alarm is None and before is not None:
        alarm = _of_two_epochs(before, epoch, workers)
    return alarm


def _digest(state: Any) -> str:
    return blake2b(repr(state).encode(), digest_size=8).hexdigest()


def _of_one_epoch(workers: Mapping[int, States]) -> Alarm | None:
    first: dict[tuple[str, str], int] = {}
    for worker, states in sorted(workers.items()):
        for key in states.items():
            if key in first:
                text = (
                    f"workers {first[key]} and {worker} of a loader draw the same random numbers: "
                    f"{key[0]} begins with the same state in both (worker_init_fn?)"
                )
                return Alarm("samples", "workers", text)
            first[key] = worker
    return None


def _of_two_epochs(before: EpochDraws, epoch: int, workers: Mapping[int, States]) -> Alarm | None:
    number, earlier = before  # a stream without set_epoch() mixes its sources again in one way
    for worker, states in sorted(workers.items()):
        for name, state in states.items():
            if earlier.get(worker, {}).get(name) == state and not name.startswith(SOURCES):
                text = (
                    f"the workers of a loader draw the random numbers of epoch {number} again in "
                    f"epoch {epoch}: {name} begins with the same state (worker_init_fn?)"
                )
                return Alarm("samples", "numbers", text)
    return None


def _generators(dataset: Any) -> Iterator[tuple[str, Any]]:
    """The generators of this process, and those that a dataset has, with names."""
    twister = sys.modules.get("numpy.random.mtrand")
    of_process = {
        "torch's generator": torch.default_generator,
        "Python's generator": random._inst,  # type: ignore[attr-defined]
        "numpy's generator": getattr(twister, "_rand", None),
    }
    yield from ((name, one) for name, one in of_process.items() if one is not None)
    if is_stream(dataset):
        return  # its workers must draw alike to shuffle files of which each reads a part
    waiting = deque([("dataset", dataset)])
    seen = {id(dataset), *map(id, of_process.values())}
    while waiting and len(seen) < MOST_OBJECTS:
        path, owner = waiting.popleft()
        for name, value in _parts(owner):
            if id(value) in seen or isinstance(value, (torch.Tensor, type)):
                continue
            seen.add(id(value))
            is_of_numpy = type(value).__module__.startswith("numpy.random")
            if is_of_numpy or isinstance(value, (torch.Generator, random.Random)):
                yield f"{path}.{name}"[-80:], value
            else:
                waiting.append((f"{path}.{name}", value))


def is_stream(dataset: Any) -> bool:
    """Whether a dataset is read in its own order."""
    return isinstance(dataset, torch.utils.data.IterableDataset)


def _states(dataset: Any) -> dict[str, Any]:
    """The states of all these generators that can be read."""
    states = ((name, state_of(one)) for name, one in _generators(dataset))
    return {name: state for name, state in states if state is not None}


def _parts(owner: Any) -> Iterator[tuple[str, Any]]:
    """What an object contains, without a call of its code."""
    if isinstance(owner, (list, tuple)):
        yield from ((str(at), value) for at, value in enumerate(owner[:MOST_PARTS]))
    elif not isinstance(owner, dict):
        attributes = getattr(owner, "__dict__", None)
        yield from list(attributes.items()) if isinstance(attributes, dict) else ()


def state_of(generator: Any) -> tuple[str, Any, Any] | None:
    """The state of a generator: its kind, and two parts. None if it has none that can be read."""
    with contextlib.suppress(Exception):  # a stranger's class
        if isinstance(generator, torch.Generator):
            if generator.device.type != "cpu":
                return None
            state = bytes(generator.get_state().tolist()[SEED_BYTES:])
            return "torch", generator.initial_seed(), blake2b(state, digest_size=16).hexdigest()
        if isinstance(generator, random.Random):
            words = generator.getstate()[1]
            return "twister", words[:-1], words[-1]
        if hasattr(generator, "get_state"):  # numpy's RandomState
            state = generator.get_state()
            return "twister", tuple(state[1].tolist()), state[2]
        state = generator.bit_generator.state
        numbers = state["state"]
        if "pos" in numbers:
            return "twister", tuple(numbers["key"].tolist()), numbers["pos"]
        # What a seed chooses, and no draw changes: of PCG64 and Philox.
        of_seed = [numbers[name] for name in ("inc", "key") if name in numbers]
        return "other", repr(of_seed), repr(state)
    return None


def has_drawn(before: tuple[str, Any, Any], after: tuple[str, Any, Any]) -> bool:
    """Whether a generator came from one state to another by drawing, and not by a new seed: a
    dataset may seed it for each row."""
    if before == after or before[0] != after[0]:
        return False
    if before[0] != "twister":
        return bool(before[1] == after[1])
    if before[1] == after[1]:
        return bool(before[2] < after[2])
    follower = random.Random()
    follower.setstate((3, (*before[1], before[2]), None))
    for _ in range(MOST_TWISTS):
        follower.getrandbits(32 * WORDS)
        if follower.getstate()[1][:-1] == after[1]:
            return True
    return False


ROUNDS = 3
"""Batches of each worker that are compared, as a rule: the first one may be alike on purpose. No
case set this number."""
MOST_WORKERS = 16
"""Workers of a loader that are compared: of more, the first rounds take too many batches."""
MOST_ITERATORS = 8
"""Iterators of a process that are looked at: a limit of time."""
LEAST_ROWS = 2
"""Different rows of a batch: padding, or rows that are made up, are equal among themselves, as in a
test of a stream of ones."""


class Rounds:
    """The first batches of each worker of an iterator, which must not all read the same stream."""

    def __init__(self, rounds: int = ROUNDS) -> None:
        self._rounds = rounds
        self._batches: weakref.WeakKeyDictionary[Any, list[tuple[int, ...]]] = (
            weakref.WeakKeyDictionary()
        )
        self._iterators = 0

    def waits(self, iterator: Any) -> bool:
        """Whether the rows of the next batch are to be compared: a loader takes a batch from one
        worker after the other, if nothing says otherwise."""
        workers = getattr(iterator, "_num_workers", 0)
        if not 1 < workers <= MOST_WORKERS or getattr(iterator, "_in_order", True) is False:
            return False
        is_new = iterator not in self._batches
        if is_new and self._iterators == MOST_ITERATORS:
            return False
        return is_new or len(self._batches[iterator]) < self._rounds * workers

    def read(self, iterator: Any, rows: Sequence[int]) -> Alarm | None:
        """Note the rows of a batch, and compare the workers after the last one that counts."""
        self._iterators += iterator not in self._batches
        batches = self._batches.setdefault(iterator, [])
        batches.append(tuple(rows))
        workers = iterator._num_workers
        if len(batches) < self._rounds * workers:
            return None
        rounds = [set(batches[at : at + workers]) for at in range(0, len(batches), workers)]
        is_alike = all(len(batches_of_round) == 1 for batches_of_round in rounds)
        different = {batch for batches_of_round in rounds for batch in batches_of_round}
        if not is_alike or len(different) < self._rounds:
            return None
        if len({*rows}) < min(LEAST_ROWS, len(rows)):
            return None
        text = (
            f"each of the {workers} workers of a loader reads the same rows: the stream is not "
            "split between them (get_worker_info?)"
        )
        return Alarm("samples", "unsplit", text)
