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
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from harness.rank.probe.script_shims import SHIMMED
from harness.system.files import ROOT
from harness.system.machine import cache_folder, own_folder
from harness.system.text import markdown_table
from harness.training.probe.prober import FOLDER, USUAL, Loop
from tests.guard import right
from tests.guard.test_trainings import RIGHT, RIGHT_SLOW
from tests.probe.false_alarms import KINDS, Kind, newest_site, turns

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


@dataclass
class Server:
    """A process that forks ranks, with the packages of an overlay."""

    process: subprocess.Popen[str]

    def run(self, request: dict[str, Any], tally: Tally, name: str) -> None:
        """Train once, and add what guard said to a tally."""
        with tempfile.TemporaryDirectory(prefix="guard-", ignore_cleanup_errors=True) as path:
            folder = Path(path)
            settings = {"every": 1, "quiet": True, "out": path}
            request = {**request, "folder": path, "settings": settings, "harm": ""}
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps(request).replace("{dir}", path) + "\n")
            self.process.stdin.flush()
            codes = json.loads(self.process.stdout.readline())
            _add(tally, name, codes, folder)


def _add(tally: Tally, name: str, codes: Sequence[int], folder: Path) -> None:
    tally.trainings += 1
    file = folder / "summary.json"
    summary: dict[str, Any] = (
        json.loads(file.read_text()) if file.is_file() else {"error": "no summary"}
    )
    if any(codes) or summary["error"]:
        log = (folder / "log0").read_text().strip().splitlines()
        tally.failed.append(f"{name}: {codes}: {summary['error'] or log[-1:]}")
        print(f"FAILED {tally.failed[-1]}", file=sys.stderr, flush=True)
        return
    tally.checks += len(summary["checked"])
    tally.not_seen.update(summary["not_seen"])
    for fault in summary["faults"]:
        tally.alarms.append(f"{name}: step {fault['step']}: {fault['check']}: {fault['text']}")
        print(f"ALARM {tally.alarms[-1]}", file=sys.stderr, flush=True)


@contextmanager
def server(site: Path | None) -> Iterator[Server]:
    """A server with the packages of ``site`` before those of this Python."""
    path = os.pathsep.join(map(str, filter(None, [site, ROOT])))
    extensions = own_folder(cache_folder(), "extensions") / "guard-loops"
    environment = {
        **os.environ,
        "PYTHONPATH": path,
        "OMP_NUM_THREADS": "1",
        "TORCH_EXTENSIONS_DIR": str(extensions),
    }
    command = [sys.executable, "-m", "tests.guard.server"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()


def request_of(kind: Kind, loop: Loop, seed: int) -> dict[str, Any]:
    """The request that runs a loop as ``probe`` does on all its ranks."""
    parts = loop.k * (1 if USUAL[loop.script].get("same_rows") else loop.ranks)
    values = {"rows": loop.rows // parts, "k": loop.k, "ranks": loop.ranks}
    words = loop.target().filled(values, f"--seed {seed}")
    request = {"script": str(FOLDER / loop.script), "arguments": words, "ranks": loop.ranks}
    return {**request, "shims": [one for one in SHIMMED.values() if one in kind.packages]}


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
    deadline = time.monotonic() + options.seconds
    chosen = set(options.kinds.split(";")) - {""}
    kinds = [kind for kind in SCRIPTS if not chosen or kind.name in chosen]
    tallies: dict[str, Tally] = {}
    servers: dict[tuple[str, ...], Server] = {}
    with ExitStack() as contexts:
        tiny = [
            (kind, name) for kind in TINY if not chosen or kind in chosen for name in TINY[kind]
        ]
        part, parts = map(int, options.part.split("/"))
        for group, training in tiny[part - 1 :: parts]:
            if time.monotonic() > deadline:
                break
            request = {"training": training, "steps": options.steps, "ranks": 2}
            with_torch = _server((), servers, contexts)
            with_torch.run(request, tallies.setdefault(group, Tally()), training)
            _write(options.json, tallies)
        for number, (kind, loop) in enumerate(islice(turns(kinds) if kinds else (), options.loops)):
            if time.monotonic() > deadline:
                break
            with_packages = _server(kind.packages, servers, contexts)
            seed = options.seed + number
            name = f"{loop.name} --seed {seed} (ranks {loop.ranks}, k {loop.k})"
            tally = tallies.setdefault(kind.name, Tally())
            with_packages.run(request_of(kind, loop, seed), tally, name)
            _write(options.json, tallies)
    print(table(tallies))
    return int(any(tally.alarms or tally.failed for tally in tallies.values()))


def _write(path: Path | None, tallies: dict[str, Tally]) -> None:
    """Write the tallies so far: somebody may end this."""
    if path is not None:
        path.write_text(
            json.dumps({name: vars(tally) for name, tally in tallies.items()}, indent=1)
        )


def _server(
    packages: tuple[str, ...], servers: dict[tuple[str, ...], Server], contexts: ExitStack
) -> Server:
    if packages not in servers:
        site = newest_site(packages, contexts) if packages else None
        servers[packages] = contexts.enter_context(server(site))
    return servers[packages]


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
