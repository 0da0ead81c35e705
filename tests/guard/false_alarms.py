"""Runs right trainings under guard, and reports alarms: all of them are false.

    python -m tests.guard.false_alarms
    python -m tests.guard.false_alarms --steps 600 --seconds 1800 --json guard.json
    python -m tests.guard.false_alarms --kinds "right loops" --part 1/8

The trainings are those of ``tests.guard.test_trainings``, the loops that users write
(``tests.guard.right``), and the loops that ``probe`` must find right, with the newest releases of
what they need. Each third step is checked.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from harness.rank.shims import SHIMMED
from harness.system.machine import cache_folder, own_folder
from harness.system.text import markdown_table
from harness.training.probe.prober import FOLDER, USUAL, Loop
from tests.guard import right
from tests.guard.test_trainings import RIGHT, RIGHT_SLOW
from tests.guard.trainer import Run, Trainer, server
from tests.probe.false_alarms import KINDS, Kind, newest_site, turns

EXTENSIONS = str(own_folder(cache_folder(), "extensions") / "guard-loops")
TINY = {"tiny trainings": (*RIGHT, *RIGHT_SLOW), "right loops": tuple(right.LOOPS)}
SCRIPTS = [kind for kind in KINDS if kind.script != "lightning_module.py"]
"""Lightning starts the ranks itself."""


@dataclass
class Tally:
    """What the trainings of a kind showed."""

    trainings: int = 0
    checks: int = 0
    alarms: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    """Trainings that ended with an error, or that guard stopped watching."""
    not_seen: Counter[str] = field(default_factory=Counter)


def add(tally: Tally, name: str, run: Run) -> None:
    """Add what guard said of a training to a tally."""
    tally.trainings += 1
    summary = run.summary or {"error": "no summary"}
    if any(run.codes) or summary["error"]:
        log = run.logs[0].strip().splitlines()
        tally.failed.append(f"{name}: {run.codes}: {summary['error'] or log[-1:]}")
        print(f"FAILED {tally.failed[-1]}", file=sys.stderr, flush=True)
        return
    tally.checks += len(summary["checked"])
    tally.not_seen.update(summary["not_seen"])
    for fault in summary["faults"]:
        tally.alarms.append(f"{name}: step {fault['step']}: {fault['check']}: {fault['text']}")
        print(f"ALARM {tally.alarms[-1]}", file=sys.stderr, flush=True)


def request_of(kind: Kind, loop: Loop, seed: int) -> dict[str, Any]:
    """The request that runs a loop as ``probe`` does on all its ranks."""
    parts = loop.k * (1 if USUAL[loop.script].get("same_rows") else loop.ranks)
    values = {"rows": loop.rows // parts, "k": loop.k, "ranks": loop.ranks, "dir": "."}
    arguments = loop.target().filled(values, f"--seed {seed}")
    shims = [one for one in SHIMMED.values() if one in kind.packages]
    return {"script": str(FOLDER / loop.script), "arguments": arguments, "shims": shims}


@dataclass
class Course:
    """The trainings, one after the other, each with the server that has its packages."""

    contexts: ExitStack
    deadline: float
    file: Path | None
    """The tallies so far: somebody may end this."""
    tallies: dict[str, Tally] = field(default_factory=dict)
    servers: dict[tuple[str, ...], Any] = field(default_factory=dict)

    def train(self, group: str, name: str, packages: tuple[str, ...] = (), **words: Any) -> bool:
        """Train once, and add it to the tally of its group; false if the time is over."""
        if time.monotonic() > self.deadline:
            return False
        if packages not in self.servers:
            site = newest_site(packages, self.contexts) if packages else None
            process = self.contexts.enter_context(server(site, TORCH_EXTENSIONS_DIR=EXTENSIONS))
            self.servers[packages] = process
        with tempfile.TemporaryDirectory(prefix="guard-", ignore_cleanup_errors=True) as folder:
            run = Trainer(self.servers[packages], Path(folder))(every=1, quiet=True, **words)
            add(self.tallies.setdefault(group, Tally()), name, run)
        if self.file is not None:
            tallies = {name: vars(tally) for name, tally in self.tallies.items()}
            self.file.write_text(json.dumps(tallies, indent=1))
        return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="of a tiny training")
    parser.add_argument("--loops", type=int, default=60, help="how many are run")
    parser.add_argument("--seed", type=int, default=0, help="of the first loop")
    parser.add_argument("--part", default="1/1", help="of the tiny trainings, such as 2/8")
    parser.add_argument("--kinds", default="", help="some of the kinds, between semicolons")
    parser.add_argument("--seconds", type=float, default=1800.0, help="nothing new after that")
    parser.add_argument("--json", type=Path, help="write the tallies")
    options = parser.parse_args()
    chosen = set(options.kinds.split(";")) - {""}
    kinds = [kind for kind in SCRIPTS if not chosen or kind.name in chosen]
    with ExitStack() as contexts:
        course = Course(contexts, time.monotonic() + options.seconds, options.json)
        tiny = [
            (kind, name) for kind in TINY if not chosen or kind in chosen for name in TINY[kind]
        ]
        part, parts = map(int, options.part.split("/"))
        for group, training in tiny[part - 1 :: parts]:
            course.train(group, training, training=training, steps=options.steps)
        for number, (kind, loop) in enumerate(islice(turns(kinds) if kinds else (), options.loops)):
            seed = options.seed + number
            name = f"{loop.name} --seed {seed} (ranks {loop.ranks}, k {loop.k})"
            request = request_of(kind, loop, seed)
            if not course.train(kind.name, name, kind.packages, request=request, ranks=loop.ranks):
                break
    print(table(course.tallies))
    return int(any(tally.alarms or tally.failed for tally in course.tallies.values()))


def table(tallies: dict[str, Tally]) -> str:
    """The tallies as a table, with their sum."""
    rows: list[tuple[str, int, int, int, int]] = [
        (name, tally.trainings, tally.checks, len(tally.alarms), len(tally.failed))
        for name, tally in tallies.items()
    ]
    sums = [sum(numbers) for numbers in zip(*(row[1:] for row in rows), strict=True)]
    heading = ("trainings", "runs", "checks", "false alarms", "failed")
    return markdown_table(heading, [list(map(str, row)) for row in (*rows, ("all", *sums))])


if __name__ == "__main__":
    sys.exit(main())
