"""The answers of many models: stored ones from the cache, the others from a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from harness.bugs.api.spec import Lane
from harness.rank import shims
from harness.rank.models.answer import Answer, Row, answer_of
from harness.rank.models.heads import parsed
from harness.rank.models.pairs import DEVICE
from harness.rank.models.relations import QUESTIONS
from harness.rank.supervisor import PARENT
from harness.run.launch import NOT_INHERITED
from harness.system import machine, store
from harness.system.code import digest
from harness.system.errors import Inconclusive
from harness.system.files import ROOT, sha256
from harness.system.text import complaint
from harness.training.models.stack import Releases

WORKER = "harness.rank.models.worker"
CODE = (WORKER, *sorted({question.module for question in QUESTIONS.values()}))
"""The modules that answers depend on. The worker imports the relations by their names, which
``digest`` does not see."""

START = f"""\
import sys
sys.path[:] = filter(None, sys.path)
import runpy
runpy.run_module({WORKER!r}, run_name="__main__", alter_sys=True)
"""
"""``python -m`` would import from the working directory first, which is the user's."""

FORMAT = 1
"""Increase it when stored answers must not be used any more."""

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
    DEVICE: "cuda",
    "DS_ACCELERATOR": "cuda",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same product twice has the same result
}

Answers = Mapping[str, Answer]
Each = Callable[[Row], object]


@dataclass
class Asking:
    """What a command asks, of which models, with which releases."""

    releases: Releases
    models: Sequence[str]
    relations: Sequence[str]
    limit: float = 60.0
    """Seconds of one relation."""
    jobs: int = field(default_factory=machine.cores)
    again: bool = False
    """Whether to ask what is stored, too."""
    lane: Lane = Lane.CPU
    """On GPUs only relations of several ranks can be asked, one model at a time: collectives of two
    models on the same GPUs can wait for each other."""
    code: str = field(default_factory=lambda: digest(*CODE))
    """The digest of our code, of the moment when it is asked."""


Source = Callable[[Asking, Mapping[str, Sequence[str]]], Iterator[Row]]
"""Yields the rows of the relations that are missing, by model."""


def ask(asking: Asking, report: Each, source: Source | None = None) -> list[Row]:
    """The rows of all models and relations, in order; ``report`` gets a row as soon as it is known.

    ``source`` gives what is not stored; without it a worker on this machine does. Raises
    Inconclusive if the worker ends early.
    """
    cache, answers_by_model = machine.cache_folder(), {}
    for model in asking.models:
        answers_by_model[model] = {} if asking.again else _stored(cache, asking, model)
    rows = {}
    for model, answers in answers_by_model.items():
        for relation in asking.relations:
            if relation in answers:
                row = Row(model, relation, answers[relation], stored=True)
                rows[model, relation] = row
                report(row)
    missing = {
        model: [name for name in asking.relations if name not in answers]
        for model, answers in answers_by_model.items()
    }
    requests = {model: tuple(names) for model, names in missing.items() if names}
    for row in (source or _from_worker)(asking, requests):
        rows[row.model, row.relation] = row
        missing[row.model].remove(row.relation)
        report(row)
        if not missing[row.model]:
            _store(cache, asking, row.model, rows)
    return [rows[model, name] for model in asking.models for name in asking.relations]


def _inputs(asking: Asking, model: str) -> dict[str, Any]:
    """All that the answers of a model depend on."""
    facts = machine.facts()
    inputs = {
        "format": FORMAT,
        "model": model,
        "releases": dict(asking.releases.packages),
        "overlay": asking.releases.overlay,
        "python": facts["python"],
        "torch": facts["torch"],
        "code": asking.code,
    }
    if asking.lane is Lane.GPU:
        inputs["lane"] = asking.lane.value
    name = parsed(model)
    if name.is_file:
        inputs["file"] = sha256(Path(name.model))
    return inputs


def _stored(cache: Path, asking: Asking, model: str) -> dict[str, Answer]:
    return store.read(_parsed, cache, _inputs(asking, model)) or {}


def _parsed(content: Any) -> dict[str, Answer]:
    return {name: answer_of(found) for name, found in content.items()}


def _store(cache: Path, asking: Asking, model: str, rows: Mapping[tuple[str, str], Row]) -> None:
    """Add the answers of a model that another run would give again to the stored ones."""
    answers = _stored(cache, asking, model)
    answers |= {row.relation: row.answer for row in rows.values() if row.model == model}
    content = {name: answer.to_json() for name, answer in answers.items() if answer.repeatable}
    store.write(cache, _inputs(asking, model), content)


def _from_worker(asking: Asking, missing: Mapping[str, Sequence[str]]) -> Iterator[Row]:
    """The rows of a worker, as it finds them."""
    if not missing:
        return
    request = {
        "ask": missing,
        "jobs": asking.jobs if asking.lane is Lane.CPU else 1,
        "limit": asking.limit,
        "shims": [point.name for point in shims.needed(asking.releases.packages, asking.lane)],
        "bytecode": str(machine.own_folder(machine.cache_folder(), "bytecode")),
    }
    with tempfile.TemporaryFile("w+") as log, _worker(asking, request, log) as lines:
        open_count = sum(map(len, missing.values()))
        for line in lines:
            reply = json.loads(line)
            yield Row(reply["model"], reply["relation"], answer_of(reply))
            open_count -= 1
        if open_count:
            raise Inconclusive(f"the process that asks the models ended early: {_last_line(log)}")


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
