"""What is said of a run, by rank 0 and again of its report. Standard library only."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

MOST_RANKS = 8
"""Ranks that a line names."""


def alarm_in_words(
    step: int, ranks: Sequence[Any], check: str, text: str, bugs: Sequence[Any] = ()
) -> str:
    """An alarm in one line, with the bugs of the catalogue that it may be."""
    also = f" (perhaps the bug {', '.join(map(str, bugs))})" if bugs else ""
    who = "all ranks" if not ranks else f"rank{'s' if len(ranks) > 1 else ''} {few(ranks)}"
    return f"step {step}, {who}: {check}: {text}{also}"


def few(ranks: Sequence[Any]) -> str:
    """Ranks as text: a few of them, and how many more there are."""
    rank_list = ", ".join(map(str, ranks[:MOST_RANKS]))
    return (
        f"{rank_list} and {len(ranks) - MOST_RANKS} more" if len(ranks) > MOST_RANKS else rank_list
    )


def known_bug(bug: Mapping[str, Any]) -> str:
    """A bug that a run sets off, in one line."""
    because = f", because {bug['because']}" if bug.get("because") else ""
    return f"KNOWN BUG {bug['name']}: {bug['title']}{because}; {bug['remedy']}"


def watched_run(releases: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    """A training that guard watches, in one line: what it found out about it."""
    words = [f"{name} {release}" for name, release in releases.items()]
    words.append(number_of(settings["ranks"], "rank"))
    words.append(
        number_of(settings["gradient_accumulation_steps"], "micro-batch", "es") + " a step"
    )
    words += [str(settings["precision"]), f"optimizer {settings['optimizer']}"]
    words += ["transformers' Trainer"] if settings["trainer"] else []
    if "zero_stage" in settings:
        words.append(f"DeepSpeed's ZeRO stage {settings['zero_stage']}")
    words += ["on GPUs"] if settings["gpu"] else []
    return f"watches {', '.join(words)}"


def progress(steps: int, restarts: int, checks: int, percent: float, ms: float, faults: int) -> str:
    """A training in one line: its steps since torchrun has started it, what they cost, and its
    faults."""
    since = f" since restart {restarts}" if restarts else ""
    return (
        f"{number_of(steps, 'step')}{since}, {checks} checked; "
        f"cost {percent:.2f} % of the time ({ms:.1f} ms a check); "
        + (number_of(faults, "fault") if faults else "no alarm")
    )


def number_of(number: int, noun: str, plural: str = "s") -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {noun}{plural if number != 1 else ''}"


def say(text: str) -> None:
    """Print a line on stderr, if there is one."""
    with contextlib.suppress(Exception):
        sys.stderr.write(f"guard: {text}\n")
        sys.stderr.flush()


def short(error: BaseException) -> str:
    """An error, and where it was raised, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}".split("\n")[0] + where
