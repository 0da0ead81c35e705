"""Damage recorded runs, grade them, and print the results: ``python -m tests.fuzz --help``."""

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
from tests.fuzz.audit import audit
from tests.fuzz.base import Base, bases
from tests.fuzz.faults import damage

EXCEPTION = "an exception"


def fuzz(
    seed: int, count: int, known: Sequence[Base], folder: Path
) -> tuple[Counter[str], list[str]]:
    """Damage ``count`` copies of ``known`` runs, in ``folder``; returns how often each result came,
    and a line for each wrong one."""
    random = Random(seed)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        base = random.choice(known)
        result, error = _one(random, base, folder / "damaged")
        counts[result] += 1
        if error:
            wrong.append(f"seed {seed}, number {number}, {base.scenario}: {error}")
    return counts, wrong


def _one(random: Random, base: Base, folder: Path) -> tuple[str, str]:
    shutil.copytree(base.folder, folder)
    try:
        how, sealed = damage(random, folder, base)
        try:
            result = grade(folder)
        except HarnessError:
            return "refused in one line", ""
        except Exception:
            return EXCEPTION, f"{how}: {EXCEPTION}: {traceback.format_exc(limit=-2)}"
        wrong = audit(base, folder, sealed, result) if how else ""
        return str(result.verdict), f"{how}: {wrong}" if wrong else ""
    finally:
        shutil.rmtree(folder)


def _job(job: tuple[int, int]) -> tuple[Counter[str], list[str]]:
    with tempfile.TemporaryDirectory(prefix="fuzz.") as folder:
        return fuzz(*job, bases(Path(folder) / "bases"), Path(folder))


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
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for some, lines in pool.map(_job, jobs):
            counts += some
            wrong += lines
    print("\n".join(report(counts, wrong)))
    return 1 if wrong else 0


def report(counts: Counter[str], wrong: list[str]) -> Iterator[str]:
    """How often each result came, and all wrong outcomes, exceptions first."""
    for result, number in counts.most_common():
        yield f"{number:7} {result}"
    yield f"{len(wrong):7} wrong outcome{'s' * (len(wrong) != 1)}"
    yield from sorted(wrong, key=lambda line: EXCEPTION not in line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
