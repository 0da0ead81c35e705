"""What tests of probe share: the type of the fixture ``probing``, and what answers contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.layouts import Settings
from harness.training.probe.prober import FOLDER, USUAL

SCRIPTS = FOLDER
SAVE, RESUMED = USUAL["ddp.py"]["save"], USUAL["ddp.py"]["resume"]

BEGIN = """
import copy, itertools, random, sys, torch, torch.utils.checkpoint
from torch import distributed as dist, nn
from torch.nn.functional import cross_entropy, mse_loss, softplus
from torch.nn.parallel import DistributedDataParallel as DDP

torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
data, labels = torch.randn(96, 4), torch.randn(96, 1)
"""
"""How most scripts of tests begin."""

GIVEN = "--batch-size {rows} --accum {k}"
"""The arguments with which probe tells a loop of ours its layout."""

NEVER = "never divided by the accumulation steps"
SUMMED = "summed over the ranks, not averaged"
"""What some ratios mean."""

Probing = Callable[[str, str | Sequence[str], Settings], Answers]
"""Probes a script of ``SCRIPTS``, one with an absolute path, or a text, with these arguments."""


def with_bug(bug: str, options: str = "") -> list[str]:
    """The arguments of a loop of ours that make a mistake."""
    return [*f"{GIVEN} {options} --bug".split(), bug]


def layout(answers: Answers, kind: str) -> Compared:
    return next(comparison for comparison in answers.layouts if comparison.layout.kind == kind)


def first_broken(answers: Answers) -> dict[str, tuple[str, str]]:
    """The first broken relation and the meaning of its ratio, by layout; only broken layouts."""
    return {
        comparison.layout.kind: (comparison.broken[0].relation, comparison.broken[0].meaning)
        for comparison in answers.layouts
        if comparison.broken
    }


def refused(answers: Answers) -> list[str]:
    """Why layouts gave no answer."""
    return [
        comparison.no_answer + comparison.log
        for comparison in answers.layouts
        if comparison.no_answer
    ]


def require_right(answers: Answers) -> None:
    """All layouts have an answer, and none is BROKEN."""
    assert not refused(answers), refused(answers)
    assert not first_broken(answers), first_broken(answers)
