"""The thread that posts what a rank saw, and, on rank 0, reads all posts and judges them.

Ranks tell each other through the store of the rendezvous, not by a collective: a rank that takes
another way, or ends, cannot make the others wait. The thread that trains copies its samples once,
to pinned memory, and goes on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..checks.finite import has_lost_loss
from ..posting.budget import FIRST_CHECKS, steps_until_next
from ..posting.packing import form_of, packed, unpacked
from ..posting.posts import LAST, Post, RunFacts
from ..posting.stores import Host, connected, joined
from ..sentences import few, say, short
from ..trainings.training import Training

LATEST = 120.0
"""Seconds after which rank 0 gives up a check that not all ranks have posted."""
SOONEST, RAREST = 0.02, 1.0
"""How often the thread looks for posts while a check is open, in seconds: less and less often."""
FEW = 64
"""Ranks that look so often. More of them look less often: all ask one server."""
AGAIN = " again"
"""What rank 0 adds to the next step if all ranks shall describe their parameters again."""
END = 4.0
"""Seconds that the end of the process waits for open checks."""
MOST_NOTES = 20


@dataclass
class Check:
    """A check whose posts rank 0 collects."""

    training: Training
    posts: dict[int, Post]
    since: float = field(default_factory=time.perf_counter)


class Mailbox:
    """The posts of this process. ``judge`` is called with all posts of a check, on rank 0."""

    def __init__(self, judge: Callable[[list[Post]], None], budget: float, every: int) -> None:
        self.rank, self.world = int(os.environ.get("RANK") or 0), 1
        self.notes: list[str] = []
        self.seconds = 0.0
        """CPU time of the thread."""
        self.failed = False
        self._left_out = 0
        """What ``left_out`` counts, before the last checks."""
        self._gaps: dict[int, tuple[Training, int, int]] = {}
        """By optimizer: the last checked step, and the next that was chosen."""
        self._judge, self._budget, self._every = judge, budget, every
        self._jobs: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._open: dict[tuple[int, int], Check] = {}
        self._unanswered: dict[tuple[int, int], Training] = {}
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._ending = threading.Event()
        """Set when this process ends."""
        self._sent_count = self._posted_count = 0
        """Each is changed by one thread alone: that which trains, and this one."""
        self._pause = SOONEST
        self._sent: list[tuple[int, int, int]] = []
        """Of each post that the store may still have: the optimizer, the check, and its parts."""
        self._lost: set[int] = set()
        """Optimizers of which a post was lost, perhaps with a description."""
        self._descriptions: dict[tuple[int, int], Post] = {}
        """By optimizer and rank, posts with descriptions, of checks that were not judged."""
        self._hurried: set[int] = set()
        """Optimizers with a loss that is not finite, for which the next check came soon."""
        self._store: Any = None
        """Has the posts of this start."""
        self._kept_store: Any = None
        self._host: Host | None = None
        """Answers the ranks that ask for that store, on rank 0, until all have posted."""

    def call(self, job: Callable[[], None]) -> None:
        """Call something in the thread, after what was posted before."""
        if self._thread is None:
            self._begin()
        self._jobs.put(job)

    def send(self, training: Training, post: Post) -> None:
        """Post what a training saw. The thread that trains does not wait for the device."""
        if self._thread is None:
            self._begin()  # it learns the rank
        post.rank = self.rank
        copies, event = dict(post.tensors), None
        on_gpu = {name: one for name, one in copies.items() if one.device.type == "cuda"}
        for name, tensor in on_gpu.items():
            pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            copies[name] = pinned.copy_(tensor, non_blocking=True)
        if on_gpu:  # occurs when the copies are complete
            event = torch.cuda.Event(blocking=True)
            event.record(torch.cuda.current_stream(next(iter(on_gpu.values())).device))
        self._sent_count += 1
        self._jobs.put(lambda: self._post(training, post, copies, event))

    def stop(self, error: str) -> None:
        """Post nothing more, and tell the other ranks, after a fault on this one."""
        with contextlib.suppress(Exception):
            self.call(lambda: self._fail(error))

    def _begin(self) -> None:
        if dist.is_available() and dist.is_initialized():
            self.world, self.rank = dist.get_world_size(), dist.get_rank()
        if self.world > 1:
            # destroy_process_group() on rank 0 would end the server, if no agent has it
            self._kept_store = dist.distributed_c10d._get_default_store()
            self._jobs.put(self._connect)  # in the thread, as a server may not answer
        self._thread = threading.Thread(target=self._run, name="guard", daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        store = connected(self._kept_store, "distributed-bugs-guard")
        if self.rank:
            self._store = joined(store, self.rank, self._ending.wait)
        else:
            self._host = Host(store, self.world)
            self._store = self._host.store

    def _run(self) -> None:
        try:
            while not self._stopped:
                self._once()
        except BaseException as error:
            if not self._stopped and self.rank == 0:  # others lose their store if rank 0 ends
                say(f"stopped, the training goes on: {short(error)}")
            with contextlib.suppress(Exception):
                self._fail(short(error))

    def _fail(self, error: str) -> None:
        """End the work of this thread; no rank checks anything from then on."""
        self.failed = self._stopped = True
        self._open.clear()
        self._note(f"guard stopped on rank {self.rank}: {error}")
        if self._store is not None:
            self._store.set(f"stopped/{self.rank}", error)
            self._store.set("stopped", str(self.rank))

    def _has_stopped(self, rank: int) -> bool:
        name = f"stopped/{rank}"
        if not self._store.check([name]):
            return False
        self._note(f"guard stopped on rank {rank}: {self._store.get(name).decode()}")
        return True

    def _note(self, text: str) -> None:
        if len(self.notes) < MOST_NOTES:
            self.notes.append(text)

    def _once(self) -> None:
        waits = bool(self._open or self._unanswered)
        soonest = SOONEST * max(1.0, self.world / FEW)
        self._pause = max(soonest, min(RAREST, 1.2 * self._pause)) if waits else soonest
        try:
            job = self._jobs.get(timeout=self._pause if waits else None)
            self._pause = soonest
        except queue.Empty:
            job = None
        started = time.thread_time()
        if job is not None:
            job()
        if not self._stopped and self._store is not None and self.rank:
            self._listen()
        elif not self._stopped:
            self._collect()
        self.seconds += time.thread_time() - started

    def _post(self, training: Training, post: Post, copies: dict[str, Tensor], event: Any) -> None:
        if event is not None:
            event.synchronize()
            # A worker of a loader is forked with all garbage of this process. If it frees pinned
            # memory, it calls CUDA, which ends it (DiT, on its second epoch): so none is kept.
            copies = {name: tensor.clone() for name, tensor in copies.items()}
        post.tensors = copies
        if has_lost_loss(post):
            training.forward.searches = True
        post.run.cost = training.costs.total(training.turn.check, self.seconds)
        key = post.optimizer, post.check
        if self.rank == 0:
            post.run.form = form_of(post)
            self._open[key] = Check(training, {0: post})
        else:
            self._send(post)
            if post.check >= FIRST_CHECKS:
                self._unanswered[key] = training
        self._posted_count += 1

    def _send(self, post: Post) -> None:
        parts = self._store.put(_name(post.optimizer, post.check, self.rank), packed(post))
        self._sent.append((post.optimizer, post.check, parts))

    def _collect(self) -> None:
        waiting: set[int] = set()
        for key, check in list(self._open.items()):
            if key[0] in waiting:
                continue  # an earlier check of the optimizer has what later ones build on
            names = {_name(*key, rank): rank for rank in range(1, self.world)}
            is_late = time.perf_counter() - check.since > LATEST
            if names and not self._store.check(list(names)):
                if self._host is not None:
                    self._host.answer()
                if self._store.check(["stopped"]):
                    rank = int(self._store.get("stopped"))
                    self._has_stopped(rank)
                    raise RuntimeError(f"rank {rank} posts no more")
                if not is_late:
                    waiting.add(key[0])
                    continue
                present = self._store.present(list(names))
                names = {name: rank for name, rank in names.items() if name in set(present)}
            values = self._store.take(list(names)) if names else []
            for rank, value in zip(names.values(), values):
                try:
                    check.posts[rank] = unpacked(value)
                except ValueError:
                    self._note(f"check {key[1]}: the post of rank {rank} cannot be read")
                    self._lost.add(key[0])
                    check.posts[rank] = Post(rank, *key, run=RunFacts(missed=True))
            del self._open[key]
            self._end(key, check)

    def _end(self, key: tuple[int, int], check: Check) -> None:
        posts = [check.posts[rank] for rank in sorted(check.posts)]
        absent = sorted(set(range(self.world)) - set(check.posts))
        absent += [post.rank for post in posts if post.run.missed]
        if len(posts) == self.world:
            self._host = None  # all have come
        if absent:
            ranks = few(absent)
            self._note(f"check {key[1]} was not judged: no post of rank {ranks}")
            described = [post for post in posts if post.parameters.described]
            self._descriptions.update({(key[0], post.rank): post for post in described})
        if len(posts) < self.world:
            self._lost.add(key[0])
        if key[1] >= FIRST_CHECKS:
            self._choose(key, check.training, posts)
        if not absent:
            for post in posts:  # an earlier one that was not judged may have the description
                earlier = self._descriptions.pop((post.optimizer, post.rank), None)
                if earlier is not None and not post.parameters.described:
                    post.parameters.described = earlier.parameters.described
                    if "first_bits" in earlier.tensors:
                        post.tensors["first_bits"] = earlier.tensors["first_bits"]
            self._judge(posts)

    def _choose(self, key: tuple[int, int], training: Training, posts: list[Post]) -> None:
        """Choose the next step to be checked, and publish it."""
        costs = [post.run.cost for post in posts if not post.run.missed]
        budget = self._budget / max(post.run.optimizers for post in posts)  # they share it
        every = self._every
        if key[0] not in self._hurried and any(map(has_lost_loss, posts)):
            every = 1  # that step names the module: it comes soon, once
            self._hurried.add(key[0])
        now = training.steps + 1
        step = now + steps_until_next(costs, budget, every, now - posts[0].step)
        if self.world > 1:
            again = AGAIN if key[0] in self._lost else ""
            self._store.set(_name(*key, "next"), f"{step}{again}")
            self._lost.discard(key[0])
        if every and every == self._every:
            self._left_out += self._left_out_of(key[0])
            self._gaps[key[0]] = training, posts[0].step, step
        training.turn.next_step = step

    @property
    def left_out(self) -> int:
        """Checks of steps that ``every`` names and that ranks could not agree on in time."""
        return self._left_out + sum(map(self._left_out_of, list(self._gaps)))

    def _left_out_of(self, optimizer: int) -> int:
        """Those since the last check of an optimizer; its training may end before the next."""
        if optimizer not in self._gaps:
            return 0
        training, last, step = self._gaps[optimizer]
        return max(0, min(step, training.steps + 1) - last - 1) // self._every

    def _listen(self) -> None:
        for key, training in list(self._unanswered.items()):
            name = _name(*key, "next")
            if not self._store.check([name]):
                if self._has_stopped(0):
                    self._unanswered.clear()
                    return
                continue
            text = self._store.get(name).decode()
            step = int(text.replace(AGAIN, ""))
            if text.endswith(AGAIN):
                training.model.is_described = False
            del self._unanswered[key]
            for sent in [one for one in self._sent if one[0] == key[0] and one[1] <= key[1]]:
                self._sent.remove(sent)  # rank 0 has read it, or will not do so any more
                self._store.remove(_name(*sent[:2], self.rank), sent[2])
            if training.steps + 1 < step:
                training.turn.next_step = step
                continue
            # It came too late: the next check has no post of this rank.
            training.turn.check += 1
            missed = Post(self.rank, key[0], training.turn.check, training.steps)
            missed.run.missed = True
            self._send(missed)
            self._unanswered[key[0], training.turn.check] = training

    def silent_ranks(self) -> list[int]:
        """The ranks that have posted nothing in a check that is open, as they take no step."""
        if self._thread is not None and self._thread.is_alive():
            return []  # it waits for a store that does not answer, as this thread would
        posted = {rank for one in self._open.values() for rank in one.posts}
        is_up = self._store is not None and not self.failed
        for optimizer, check in list(self._open) if is_up else ():
            names = {_name(optimizer, check, rank): rank for rank in range(1, self.world)}
            posted |= {names[name] for name in self._store.present(list(names))}
        return sorted(set(range(self.world)) - posted) if self._open else []

    @property
    def has_begun(self) -> bool:
        """Whether there is a thread: none can begin when the interpreter ends."""
        return self._thread is not None

    def close(self) -> list[list[Post]]:
        """Wait for open checks, and end the thread: one that is in C++ when the interpreter ends
        would abort the process. Returns the last posts that there are, if those of some ranks have
        not come."""
        end = time.perf_counter() + END
        while self._thread is not None and not self.failed and time.perf_counter() < end:
            is_busy = self._sent_count != self._posted_count
            if not is_busy and not (self.rank == 0 and self._open):
                break
            self._jobs.put(None)  # do not wait any longer to look for posts
            time.sleep(SOONEST)
        self._stopped = True
        self._ending.set()
        self._jobs.put(None)
        if self._thread is not None:
            self._thread.join(5)
        open_checks = [one for (_, number), one in self._open.items() if number == LAST]
        return [[one.posts[rank] for rank in sorted(one.posts)] for one in open_checks]


def _name(optimizer: int, check: int, who: Any) -> str:
    return f"{optimizer}/{check}/{who}"
