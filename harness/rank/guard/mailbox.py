"""The thread that posts what a rank saw, and, on rank 0, reads all posts and judges them.

Ranks tell each other through the store of the rendezvous, not by a collective: a rank that takes
another way, or ends, cannot make the others wait. The thread that trains copies its samples once,
to pinned memory, and goes on.
"""

from __future__ import annotations

import datetime
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .budget import FIRST_CHECKS, steps_until_next
from .posts import Post, packed, unpacked
from .training import Training

LATEST = 120.0
"""Seconds after which rank 0 gives up a check that not all ranks have posted."""
STORE_TIMEOUT = 10.0
IDLE, WAITING = 0.2, 0.02
"""How often the thread looks for posts, in seconds, without and with a check that is open."""
END = 6.0
"""Seconds that the end of the process waits for open checks."""


@dataclass
class Check:
    """A check whose posts rank 0 collects."""

    training: Training
    posts: dict[int, Post]
    since: float = field(default_factory=time.perf_counter)


class Mailbox:
    """The posts of this process. ``judge`` is called with all posts of a check, on rank 0."""

    def __init__(
        self, judge: Callable[[list[Post]], None], budget: float, every: int, keep: str = ""
    ) -> None:
        self.rank, self.world = 0, 1
        self.notes: list[str] = []
        self.seconds = 0.0
        """CPU time of the thread."""
        self.failed = False
        self._judge, self._budget, self._every, self._keep = judge, budget, every, keep
        self._jobs: queue.Queue[tuple[Training, Post, Any]] = queue.Queue()
        self._open: dict[tuple[int, int], Check] = {}
        self._unanswered: dict[tuple[int, int], Training] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._busy = 0
        self._store: Any = None
        self._kept_store: Any = None

    def send(self, training: Training, post: Post) -> None:
        """Post what a training saw. The thread that trains does not wait for the device."""
        if self._thread is None:
            self._begin()
        post.rank = self.rank
        copies = {name: _on_host(tensor) for name, tensor in post.tensors.items()}
        event = _event(post.tensors)
        self._busy += 1
        self._jobs.put((training, post, (copies, event, post.tensors)))

    def _begin(self) -> None:
        if dist.is_available() and dist.is_initialized():
            self.world, self.rank = dist.get_world_size(), dist.get_rank()
        if self.world > 1:
            store = dist.distributed_c10d._get_default_store()
            # destroy_process_group() on rank 0 would end the server, if no agent has it
            self._kept_store = store
            try:
                store = store.clone()  # a connection of its own: a call of a store locks it
                store.set_timeout(datetime.timedelta(seconds=STORE_TIMEOUT))
            except Exception:
                self.notes.append("the store of the ranks could not be cloned")
            run = os.environ.get("TORCHELASTIC_RUN_ID", "")
            restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            self._store = dist.PrefixStore(f"distributed-bugs-guard/{run}/{restart}", store)
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._once()
        except Exception:
            self.failed = True
            self._open.clear()
            if not self._stopped and self.rank == 0:  # others lose their store if rank 0 ends
                sys.stderr.write(f"guard: stopped: {traceback.format_exc(limit=-4)}\n")

    def _once(self) -> None:
        try:
            wait = WAITING if self._open or self._unanswered else IDLE
            job = self._jobs.get(timeout=wait)
        except queue.Empty:
            job = None
        started = time.thread_time()
        if job is not None:
            self._post(*job)
            self._busy -= 1
        if self.rank == 0:
            self._collect()
        else:
            self._listen()
        self.seconds += time.thread_time() - started

    def _post(self, training: Training, post: Post, copied: Any) -> None:
        copies, event, _ = copied
        if event is not None:
            event.synchronize()
        post.tensors = copies
        post.cost = training.cost(self.seconds)
        key = post.optimizer, post.check
        if self.rank == 0:
            self._open[key] = Check(training, {0: post})
            return
        self._store.set(_name(*key, self.rank), packed(post))
        if post.check >= FIRST_CHECKS:
            self._unanswered[key] = training

    def _collect(self) -> None:
        for key, check in list(self._open.items()):
            for rank in range(1, self.world):
                name = _name(*key, rank)
                if rank not in check.posts and self._store.check([name]):
                    check.posts[rank] = unpacked(self._store.get(name))
                    self._store.delete_key(name)
            is_late = time.perf_counter() - check.since > LATEST
            if len(check.posts) == self.world or is_late:
                del self._open[key]
                self._end(key, check)

    def _end(self, key: tuple[int, int], check: Check) -> None:
        posts = [check.posts[rank] for rank in sorted(check.posts)]
        absent = sorted(set(range(self.world)) - set(check.posts))
        absent += [post.rank for post in posts if post.missed]
        if absent:
            ranks = ", ".join(map(str, absent))
            self.notes.append(f"check {key[1]} was not judged: no post of rank {ranks}")
        if key[1] >= FIRST_CHECKS:
            self._choose(key, check.training, posts)
        if not absent:
            self._store_posts(key, posts)
            self._judge(posts)

    def _choose(self, key: tuple[int, int], training: Training, posts: list[Post]) -> None:
        """Choose the next step to be checked, and publish it."""
        costs = [post.cost for post in posts if not post.missed]
        step = training.steps + 1 + steps_until_next(costs, self._budget, self._every)
        if self.world > 1:
            self._store.set(_name(*key, "next"), str(step))
        training.next_step = step

    def _listen(self) -> None:
        for key, training in list(self._unanswered.items()):
            name = _name(*key, "next")
            if not self._store.check([name]):
                continue
            step = int(self._store.get(name))
            del self._unanswered[key]
            if training.steps + 1 < step:
                training.next_step = step
                continue
            # It came too late: the next check has no post of this rank.
            training.check += 1
            missed = Post(self.rank, key[0], training.check, training.steps, missed=True)
            self._store.set(_name(key[0], training.check, self.rank), packed(missed))
            self._unanswered[key[0], training.check] = training

    def _store_posts(self, key: tuple[int, int], posts: list[Post]) -> None:
        for post in posts if self._keep else ():
            name = f"{key[0]}-{post.step:08}-{post.rank}.post"
            with open(os.path.join(self._keep, name), "wb") as file:
                file.write(packed(post))

    def close(self) -> None:
        """Wait for open checks, and end the thread: one that is in C++ when the interpreter ends
        would abort the process."""
        end = time.perf_counter() + END
        while self._thread is not None and not self.failed and time.perf_counter() < end:
            if not self._busy and not (self.rank == 0 and self._open):
                break
            time.sleep(0.01)
        self._stopped = True
        if self._thread is not None:
            self._thread.join(5)


def _name(optimizer: int, check: int, who: Any) -> str:
    return f"{optimizer}/{check}/{who}"


def _on_host(tensor: Tensor) -> Tensor:
    if tensor.device.type != "cuda":
        return tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor, non_blocking=True)


def _event(tensors: dict[str, Tensor]) -> Any:
    """An event that occurs when the copies of tensors on a GPU are complete; None on the CPU."""
    devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
    if not devices:
        return None
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(devices.pop()))
    return event
