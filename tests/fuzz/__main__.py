"""Spoil recorded runs, grade each, and print what came of it: ``python -m tests.fuzz --help``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random

from harness.errors import HarnessError
from harness.trial.grade import grade
from tests.fuzz.audit import complaint
from tests.fuzz.base import Base, bases
from tests.fuzz.faults import spoil

EXCEPTION = "an exception"


def fuzz(
    seed: int, count: int, known: Sequence[Base], place: Path
) -> tuple[Counter[str], list[str]]:
    """Spoil ``count`` copies of ``known`` runs, in ``place``; what was told of them, by how often,
    and what should not have been told."""
    random = Random(seed)
    told: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        base = random.choice(known)
        answer, complaint_ = _one(random, base, place / "spoilt")
        told[answer] += 1
        if complaint_:
            wrong.append(f"seed {seed}, number {number}, {base.scenario}: {complaint_}")
    return told, wrong


def _one(random: Random, base: Base, folder: Path) -> tuple[str, str]:
    shutil.copytree(base.folder, folder)
    try:
        how, sealed = spoil(random, folder, base)
        try:
            result = grade(folder)
        except HarnessError:
            return "refused in one line", ""
        except Exception:
            return EXCEPTION, f"{how}: {EXCEPTION}: {traceback.format_exc(limit=-2)}"
        wrong = complaint(base, folder, sealed, result) if how else ""
        return str(result.verdict), f"{how}: {wrong}" if wrong else ""
    finally:
        shutil.rmtree(folder)


def _job(job: tuple[int, int]) -> tuple[Counter[str], list[str]]:
    with tempfile.TemporaryDirectory(prefix="fuzz.") as place:
        return fuzz(*job, bases(Path(place) / "bases"), Path(place))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="how many folders")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    chunk = 500
    jobs = [
        (options.seed * 1_000_000 + start, min(chunk, options.count - start))
        for start in range(0, options.count, chunk)
    ]
    told: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for counts, complaints in pool.map(_job, jobs):
            told += counts
            wrong += complaints
    print("\n".join(report(told, wrong)))
    return 1 if wrong else 0


def report(told: Counter[str], wrong: list[str]) -> Iterator[str]:
    """How often each answer came, and all that should not have been told, exceptions first."""
    for answer, number in told.most_common():
        yield f"{number:7} {answer}"
    yield f"{len(wrong):7} should not have been told"
    yield from sorted(wrong, key=lambda line: EXCEPTION not in line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
