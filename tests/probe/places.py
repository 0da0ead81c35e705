"""Asks probe for the place of each bug of the catalogue that a loop of ours shows.

    python -m tests.probe.places
    python -m tests.probe.places accumulation_ends tied_grad_reduce

The table has the files with the bug beside the place, for a person to compare: a stage has no file.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from dataclasses import replace

from harness.bugs import catalog
from harness.run.server_pool import Pool
from harness.system.errors import HarnessError
from harness.training.probe.prober import Prober
from tests.overlays import lent
from tests.probe.upgrades import broken_loops


def main(names: list[str]) -> int:
    print("| bug | place | files with the bug | s |\n| --- | --- | --- | --- |")
    with ExitStack() as loans, Pool() as pool:
        for name, loop, layouts in broken_loops(names):
            if not layouts:
                continue
            began = time.monotonic()
            try:
                site = loans.enter_context(lent(name, "buggy"))["buggy"].site
                settings = replace(loop.settings(), where=True)
                answers = Prober(pool, site).probe(loop.target(), settings)
                place = answers.where.sentence if answers.where else "nothing is BROKEN"
            except HarnessError as error:
                place = f"no answer: {' '.join(str(error).split())[:120]}"
            files = ", ".join(f"`{file}`" for file in catalog.scenario(name).watched)
            print(f"| {name} | {place} | {files} | {time.monotonic() - began:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
