"""The answers of many models, as a worker gives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TextIO

from harness.bugs.api.spec import Lane
from harness.rank import shims
from harness.rank.models.answer import Row, answer_of
from harness.rank.supervisor import PARENT
from harness.run.launch import NOT_INHERITED
from harness.system import machine
from harness.system.errors import Inconclusive
from harness.system.files import ROOT
from harness.system.text import complaint
from harness.training.models.stack import Releases

WORKER = "harness.rank.models.worker"

START = f"""\
import sys
sys.path[:] = filter(None, sys.path)
import runpy
runpy.run_module({WORKER!r}, run_name="__main__", alter_sys=True)
"""
"""``python -m`` would import from the working directory first, which is the user's."""

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "critical",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "DS_ACCELERATOR": "cpu",
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # GPUs are counted without CUDA, which breaks forks
    "TORCHDYNAMO_DISABLE": "1",  # flex attention would be compiled, for minutes
}
"""The environment of a worker: no hub, one thread, nothing compiled."""

ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}
"""Some models ask CUDA in a pass. The ranks, which are forked later, could not train then."""

ON_GPUS = {
    "DS_ACCELERATOR": "cuda",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same product twice has the same result
}


@dataclass
class Asking:
    """What a command asks, of which models, with which releases."""

    releases: Releases
    models: Sequence[str]
    relations: Sequence[str]
    limit: float = 60.0
    """Seconds of one relation."""
    jobs: int = field(default_factory=machine.cores)
    lane: Lane = Lane.CPU
    """On GPUs only relations of several ranks can be asked, one model at a time: collectives of two
    models on the same GPUs can wait for each other."""


def ask(asking: Asking, report: Callable[[Row], object]) -> list[Row]:
    """The rows of all models and relations, in order; ``report`` gets a row as soon as it is known.

    Raises Inconclusive if the worker ends early.
    """
    request = {
        "models": list(asking.models),
        "relations": list(asking.relations),
        "device": "cuda" if asking.lane is Lane.GPU else "cpu",
        "jobs": asking.jobs if asking.lane is Lane.CPU else 1,
        "limit": asking.limit,
        "shims": [point.name for point in shims.needed(asking.releases.packages, asking.lane)],
        "bytecode": str(machine.own_folder(machine.cache_folder(), "bytecode")),
    }
    keys = [(model, relation) for model in asking.models for relation in asking.relations]
    rows = {}
    with tempfile.TemporaryFile("w+") as log, _worker(asking, request, log) as lines:
        for line in lines:
            reply = json.loads(line)
            row = Row(reply["model"], reply["relation"], answer_of(reply))
            rows[row.model, row.relation] = row
            report(row)
        if len(rows) < len(keys):
            raise Inconclusive(f"the process that asks the models ended early: {_last_line(log)}")
    return [rows[key] for key in keys]


@contextmanager
def _worker(asking: Asking, request: Mapping[str, Any], log: TextIO) -> Iterator[Iterable[str]]:
    """The lines that a worker writes; it ends with the context."""
    process = subprocess.Popen(
        [sys.executable, "-c", START],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        env=_environment(asking),
    )
    if process.stdin is None or process.stdout is None:
        raise Inconclusive("the worker has no pipes")
    try:
        with suppress(BrokenPipeError), process.stdin as stdin:  # it ended: its log says why
            stdin.write(json.dumps(request))
        yield process.stdout
        process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _environment(asking: Asking) -> dict[str, str]:
    """The environment of a worker: the overlay, then the harness, first on its path."""
    variables = {name: value for name, value in os.environ.items() if not NOT_INHERITED.match(name)}
    # A bundle that is in use sets PYTHONPATH.
    user_path = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [asking.releases.site, ROOT, *filter(None, user_path)]
    device = ON_GPUS if asking.lane is Lane.GPU else ON_CPU
    return {
        **variables,
        **QUIET,
        **device,
        PARENT: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(map(str, dict.fromkeys(path))),
    }


def _last_line(log: TextIO) -> str:
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()]
    return complaint(RuntimeError(lines[-1])).partition(": ")[2] if lines else "it said nothing"
