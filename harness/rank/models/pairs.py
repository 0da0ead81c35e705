"""Checks relations that need two ranks, in two forked processes that inherit the model.

The process that forks them must not have run a backward pass: torch's autograd cannot be forked.
With GPUs it must not have run a forward pass either: CUDA cannot be forked.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
from torch import distributed as dist

from harness.rank import forks, gpu_places
from harness.rank.forks import Child, Children
from harness.rank.models.answer import Answer, AnswerStatus, answer_of, no_answer
from harness.rank.models.asking import ask_alone, unbuilt
from harness.rank.models.subject import Subject

RANKS = 2
PATIENCE = timedelta(seconds=60)
"""For a collective."""

GRACE = 5.0
"""Seconds that a rank may run after the other one failed. With NCCL it waits in a collective."""

LOST = ("Connection closed", "Connection reset", "peer", "timed out", "Timed out", "gloo")
"""Parts of the error messages of a rank whose peer has failed."""


DEVICE = "HARNESS_MODELS_DEVICE"
"""The variable with the device of both ranks: cuda, with NCCL; otherwise the CPU, with gloo."""


def unbuilt_apart(subject: Subject) -> str:
    """As ``unbuilt``, in a process of its own: the pass of some models initialises CUDA, and ranks
    that this process forks later could not use a GPU."""
    reasons: list[str] = []
    with Children() as children:
        child = children.start(lambda: forks.report(unbuilt(subject)))
        reasons += [message for _, message in children.hear() if message is not None]
    return reasons[0] if reasons else f"a pass ended with {_ending(child.code or 0)}"


def ask_on_ranks(name: str, subject: Subject) -> Answer:
    """Check a relation on two ranks; returns the worse answer. A rank that still runs ``GRACE``
    seconds after the other one failed is killed: it would wait for its peer until the time limit.
    """
    by_rank: dict[Child, Answer] = {}
    with tempfile.TemporaryDirectory(dir=subject.folder) as folder, Children() as ranks:
        checks = [partial(_check, name, subject, rank, Path(folder)) for rank in range(RANKS)]
        children = [ranks.start(check) for check in checks]
        for child, message in ranks.hear():
            if message is not None:
                by_rank[child] = answer_of(message)
            elif child not in by_rank or by_rank[child].status is not AnswerStatus.RIGHT:
                for peer in ranks.living:
                    peer.allow(GRACE)
    answers = [by_rank[child] for child in children if child in by_rank]
    codes = [child.code or 0 for child in children]
    if answers and not (any(codes) and all(a.status is AnswerStatus.RIGHT for a in answers)):
        return _together(answers)
    how = _ending(max(codes) if max(codes) > 0 else min(codes))
    return Answer(AnswerStatus.NO_ANSWER, f"a rank ended with {how}")


def _check(name: str, subject: Subject, rank: int, folder: Path) -> None:
    """Check a relation, as one of the ranks."""
    try:
        _join(rank, folder)
    except Exception as error:  # perhaps the model refused the relation, and the other rank ended
        answer = no_answer(error)
    else:
        answer = _move(subject) or ask_alone(name, subject)
    if answer.status is AnswerStatus.RIGHT and on_gpus():
        dist.barrier()  # NCCL aborts a rank whose peer leaves while its GPU still works
        torch.cuda.synchronize()
    forks.report(answer.to_json())


def _join(rank: int, folder: Path) -> None:
    from torch.distributed import FileStore  # type: ignore[attr-defined]

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS))
    if on_gpus():
        os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
        gpu_places.take_place()
    store = FileStore(str(folder / "store"), RANKS)
    backend = "nccl" if on_gpus() else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=RANKS, timeout=PATIENCE)


def _move(subject: Subject) -> Answer | None:
    """Move the subject to the rank's GPU, if any; returns an answer only if that fails."""
    if not on_gpus():
        return None
    try:
        # A fork has no pool of threads until this makes one. Otherwise the threads of autograd, one
        # for each GPU, do so at the same time, and torch ends the process.
        torch.set_num_threads(1)
        local = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(local)
        torch.use_deterministic_algorithms(True, warn_only=True)  # sums would differ by rounding
        torch.backends.cudnn.allow_tf32 = False
        subject.move(f"cuda:{local}")
    except Exception as error:
        return no_answer(error)
    return None


def on_gpus() -> bool:
    """Whether the ranks of this process have GPUs."""
    return os.environ.get(DEVICE) == "cuda"


def _together(answers: Sequence[Answer]) -> Answer:
    """The worst answer. The answer of a rank that only lost its peer does not count."""
    candidates = [a for a in answers if not any(part in a.reason for part in LOST)] or list(answers)
    order = (AnswerStatus.WRONG, AnswerStatus.REFUSED, AnswerStatus.NO_ANSWER, AnswerStatus.RIGHT)
    return min(candidates, key=lambda answer: order.index(answer.status))


def _ending(code: int) -> str:
    return "an error" if code > 0 else f"signal {-code}"
