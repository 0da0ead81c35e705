"""A rank of a layout: runs the user's script unchanged, with a ``Watch`` that records its steps."""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import multiprocessing.process
import os
import runpy
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

from harness.rank import supervisor
from harness.rank.probe import constants, cuda_calls, exchange
from harness.rank.probe.exchange import Assignment
from harness.rank.probe.recording import draws
from harness.rank.probe.watch import Watch

PEER_GRACE = 20
"""Seconds that a rank waits after its last step for the other ranks to finish."""


def main(folder: Path) -> None:
    """Run the script until it has taken its steps, or has ended."""
    assignment = Assignment(**json.loads((folder / "assignment.json").read_text()))
    # Enter the user's folder, as if Python had been started there.
    os.chdir(assignment.cwd)
    multiprocessing.process.ORIGINAL_DIR = assignment.cwd  # type: ignore[attr-defined]
    # A folder that is deleted later: this process and a loader's workers end without a teardown.
    os.environ["TMPDIR"] = assignment.temporary
    tempfile.tempdir = None
    # SIGUSR1 writes the stack to a descriptor: the file stays open as long as the process lives.
    stack = (folder / f"stack_rank_{os.environ['RANK']}.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=stack, all_threads=False)
    supervisor.set_name(f"rank {os.environ['RANK']}")
    importlib.import_module(assignment.imports)  # unless this process was forked with it
    draws.seed(int(os.environ["RANK"]))
    if assignment.on_cpu:
        cuda_calls.install()
    watch = Watch(assignment, lambda: _leave(folder, watch))
    watch.install()
    _run(assignment)
    _leave(folder, watch)


def _run(assignment: Assignment) -> None:
    """Run the script or the module, as Python itself would."""
    script = assignment.script
    sys.argv = [script, *assignment.arguments]
    beside = assignment.cwd if assignment.module else str(Path(script).resolve().parent)
    sys.path.insert(0, beside)
    try:
        if assignment.constants:
            _run_changed(assignment)
        elif assignment.module:
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        if left.code:
            raise


def _run_changed(assignment: Assignment) -> None:
    """Run the script with other constants."""
    spec = importlib.util.find_spec(assignment.script) if assignment.module else None
    file = (spec and spec.origin) or assignment.script
    values = {name: constants.value(text) for name, text in assignment.constants.items()}
    code = compile(constants.changed(Path(file).read_text(), file, values), file, "exec")
    main = ModuleType("__main__")
    main.__dict__.update(__file__=file, __spec__=None, __package__=spec and spec.parent)
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


def _leave(folder: Path, watch: Watch) -> None:
    """Write the records, wait for the other ranks, and end without a teardown."""
    file = folder / f"rank{os.environ['RANK']}.pickle"
    file.with_suffix(".part").write_bytes(exchange.dumped(watch.records()))
    file.with_suffix(".part").rename(file)
    deadline = time.monotonic() + PEER_GRACE
    while time.monotonic() < deadline:
        if len(list(folder.glob("rank*.pickle"))) >= int(os.environ["WORLD_SIZE"]):
            break
        time.sleep(0.005)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
