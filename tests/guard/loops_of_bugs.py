"""Runs the loops of bugs under guard, with the releases of buggy and fixed, and reports alarms.

    python -m tests.guard.loops_of_bugs sampler_shards tp_norm_partial
    python -m tests.guard.loops_of_bugs --layouts resume zero3_module_only

``score guard`` watches scenarios. This is for bugs whose scenario has no training: their loop in
``loops/``, which ``probe.json`` names, is a real one. Each step is checked.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.rank.shims import SHIMMED
from harness.training.probe import signatures
from harness.training.probe.prober import FOLDER, USUAL, Loop
from tests.guard.trainer import Run, Trainer, server
from tests.overlays import lent

VARIANTS = ("buggy", "fixed")
LAYOUTS = {"ranks": (2, 1), "accumulation": (1, 3), "both": (2, 3), "resume": (2, 1)}
"""The ranks and the micro-batches of a step."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.guard.loops_of_bugs")
    parser.add_argument("scenarios", nargs="+")
    parser.add_argument("--layouts", nargs="*", choices=LAYOUTS, help="default: those of the loop")
    parser.add_argument("--add", default="", help="further arguments, which replace earlier ones")
    parser.add_argument("--at", type=int, help="the step of the save (default: that of the loop)")
    options = parser.parse_args()
    for name in options.scenarios:
        signature = signatures.read(catalog.folder(name))
        loop = signature.loop if signature is not None else None
        assert loop is not None, f"{name} has no loop"
        arguments = f"{loop.arguments} {options.add}"
        loop = replace(loop, arguments=arguments, at=options.at or loop.at)
        with tempfile.TemporaryDirectory(prefix="guard-") as folder, ExitStack() as stack:
            overlays = stack.enter_context(lent(name, *VARIANTS))
            for variant, overlay in overlays.items():
                process = stack.enter_context(server(overlay.site, DS_ACCELERATOR="cpu"))
                for layout in options.layouts or list(loop.layouts or LAYOUTS):
                    place = Path(folder, variant, layout)
                    place.mkdir(parents=True)
                    for run in _runs(loop, layout, Trainer(process, place), place):
                        _report(f"{name}, {variant}, {layout}", run)
    return 0


def _runs(loop: Loop, layout: str, train: Trainer, folder: Path) -> Iterator[Run]:
    """The training of a layout; a resume is two."""
    ranks, k = LAYOUTS.get(layout, LAYOUTS["ranks"])
    usual = USUAL[loop.script]
    rows = loop.rows if usual.get("same_rows") else loop.rows // (ranks * k)
    parts = [""] if layout != "resume" else [usual["save"], usual["resume"]]
    for part in parts:
        words = " ".join([usual["arguments"], part])
        words = words.format(rows=max(1, rows), k=k, ranks=ranks, dir=folder, at=loop.at)
        arguments = shlex.split(f"{words} {loop.arguments}")
        request: dict[str, Any] = {"script": str(FOLDER / loop.script), "arguments": arguments}
        request |= {"shims": list(SHIMMED), "engine": {"fault": ""}}
        yield train(ranks=ranks, request=request, every=1, saves=str(folder))


def _report(title: str, run: Run) -> None:
    print(f"{title}: codes {run.codes}, {run.summary.get('checks')} checks", flush=True)
    for alarm in run.alarms:
        print(f"    {alarm['step']} {alarm['check']}/{alarm['kind']}: {alarm['text']}", flush=True)
    for sentence in run.summary.get("not_seen", []):
        print(f"    not seen: {sentence}", flush=True)
    if any(run.codes) or not run.summary:
        print("\n".join(run.logs[0].splitlines()[-8:]), file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
