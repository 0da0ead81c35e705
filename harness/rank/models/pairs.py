"""Checks relations that need two ranks, in two forked processes that inherit the model.

The process that forks them must not have run a backward pass: torch's autograd cannot be forked.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from harness.rank import supervisor
from harness.rank.models.answer import Answer, AnswerStatus, answer_of
from harness.rank.models.asking import asked
from harness.rank.models.subject import Subject
from harness.system.text import complaint

RANKS = 2
PATIENCE = timedelta(seconds=60)
"""For a collective."""

GRACE = 5.0
"""Seconds that a rank may run after the other one failed. With NCCL it waits in a collective."""

LOST = ("Connection closed", "Connection reset", "peer", "timed out", "Timed out", "gloo")
"""Parts of the error messages of a rank whose peer has failed."""


DEVICE = "HARNESS_MODELS_DEVICE"
"""The variable with the device of both ranks: cuda, with NCCL; otherwise the CPU, with gloo."""


def asked_on_ranks(name: str, subject: Subject) -> Answer:
    """Check a relation on two ranks; returns the worse answer."""
    with tempfile.TemporaryDirectory(dir=subject.folder) as folder:
        pids = dict(_start(name, subject, rank, Path(folder)) for rank in range(RANKS))
        texts = _read(pids)
        codes = [os.waitpid(pid, 0)[1] for pid in pids.values()]
    answers = [_answer(text) for text in texts.values() if text]
    failed = [code for code in codes if code]
    if answers and not (failed and all(each.status is AnswerStatus.RIGHT for each in answers)):
        return _together(answers)
    return _crashed(codes)


def _start(name: str, subject: Subject, rank: int, folder: Path) -> tuple[int, int]:
    """Fork a rank; returns the pipe that gets its answer, and its process id."""
    reads, writes = os.pipe()
    if pid := os.fork():
        os.close(writes)
        return reads, pid
    _be(name, subject, rank, folder, writes)


def _be(name: str, subject: Subject, rank: int, folder: Path, answers: int) -> NoReturn:
    code = 1
    try:
        supervisor.end_with_parent()
        answer = _joined(rank, folder) or _move(subject, rank) or asked(name, subject)
        if answer.status is AnswerStatus.RIGHT and _on_gpus():
            _wait()  # NCCL aborts a rank whose peer leaves while its GPU still works
        os.write(answers, json.dumps(answer.to_json()).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # without teardown: the other rank may wait for ever


def _joined(rank: int, folder: Path) -> Answer | None:
    """Join the process group; returns an answer only if that fails. The other rank may have ended,
    for example because the model does not support the relation."""
    try:
        _join(rank, folder)
    except Exception as error:
        return Answer(AnswerStatus.NO_ANSWER, complaint(error))
    return None


def _join(rank: int, folder: Path) -> None:
    from torch import distributed as dist
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    store = FileStore(str(folder / "store"), RANKS)
    backend = "nccl" if _on_gpus() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=PATIENCE)


def _move(subject: Subject, rank: int) -> Answer | None:
    """Move the subject to the rank's GPU, if any; returns an answer only if that fails."""
    if not _on_gpus():
        return None
    try:
        import torch

        # A fork has no pool of threads until this makes one. Otherwise the threads of autograd, one
        # for each GPU, do so at the same time, and torch ends the process.
        torch.set_num_threads(1)
        torch.cuda.set_device(rank)
        torch.use_deterministic_algorithms(True, warn_only=True)  # sums would differ by rounding
        torch.backends.cudnn.allow_tf32 = False
        subject.move(f"cuda:{rank}")
    except Exception as error:
        return Answer(AnswerStatus.NO_ANSWER, complaint(error))
    return None


def _wait() -> None:
    import torch
    from torch import distributed as dist

    dist.barrier()
    torch.cuda.synchronize()


def _on_gpus() -> bool:
    return os.environ.get(DEVICE) == "cuda"


def _read(pids: Mapping[int, int]) -> dict[int, bytes]:
    """Read what each rank writes, by its pipe. A rank that still runs ``GRACE`` seconds after the
    other one failed is killed: it would wait for its peer until the time limit."""
    texts, until = dict.fromkeys(pids, b""), None
    with selectors.DefaultSelector() as running:
        for pipe in pids:
            running.register(pipe, selectors.EVENT_READ)
        while running.get_map():
            ready = running.select(until and max(until - time.monotonic(), 0))
            if not ready:
                _end(pids[key.fd] for key in running.get_map().values())
                until = None
            for key, _ in ready:
                if part := os.read(key.fd, 1 << 16):
                    texts[key.fd] += part
                    continue
                running.unregister(key.fd)
                os.close(key.fd)
                if not texts[key.fd] or _answer(texts[key.fd]).status is not AnswerStatus.RIGHT:
                    until = time.monotonic() + GRACE
    return texts


def _end(pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)  # not yet waited for, so it is still ours


def _answer(text: bytes) -> Answer:
    return answer_of(json.loads(text))


def _together(answers: Sequence[Answer]) -> Answer:
    """The worst answer. The answer of a rank that only lost its peer does not count."""
    candidates = [a for a in answers if not any(part in a.reason for part in LOST)] or list(answers)
    order = (AnswerStatus.WRONG, AnswerStatus.REFUSED, AnswerStatus.NO_ANSWER, AnswerStatus.RIGHT)
    return min(candidates, key=lambda answer: order.index(answer.status))


def _crashed(codes: Iterable[int]) -> Answer:
    """The answer if no rank wrote one: how the ranks ended."""
    worst = max(codes)
    how = f"signal {os.WTERMSIG(worst)}" if os.WIFSIGNALED(worst) else "an error"
    return Answer(AnswerStatus.NO_ANSWER, f"a rank ended with {how}", repeatable=False)
