"""Models as tasks of Slurm, for ``on=slurm``. A task asks some models, and stores their answers in
the shared cache, so the same command again sends only the others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from harness.bugs.api.spec import Lane
from harness.rank.models.answer import Answer, AnswerStatus, Row
from harness.rank.models.pairs import RANKS
from harness.run import slurm
from harness.run.cluster import end_with_a_signal
from harness.run.run_config import OnConfig
from harness.run.slurm import Say, Shape, Work
from harness.system import machine
from harness.system.errors import HarnessError
from harness.training.models.answers import Asking, ask

PART = 8
"""The models of a task, which imports torch and transformers once for all of them."""
CORES = 4
"""The cores of a task, if ``on.cpus`` does not say it."""


def rows(
    asking: Asking, missing: Mapping[str, Sequence[str]], on: OnConfig, say: Say
) -> Iterator[Row]:
    """The rows of the models and relations that are missing, as the tasks end."""
    cells = {(model, relation) for model, relations in missing.items() for relation in relations}
    names = list(missing)
    parts = [
        replace(asking, models=names[at : at + PART], jobs=on.cpus or CORES)
        for at in range(0, len(names), PART)
    ]
    gpus = (on.gpus or RANKS) if asking.lane is Lane.GPU else 0
    works = [Work(part, Shape(part.jobs, gpus)) for part in parts]
    for at, outcome in slurm.results(works, task, on, say):
        task_rows = outcome
        if isinstance(outcome, HarnessError):  # the task failed
            answer = Answer(AnswerStatus.NO_ANSWER, str(outcome), repeatable=False)
            pairs = product(parts[at].models, parts[at].relations)
            task_rows = [Row(model, relation, answer) for model, relation in pairs]
        yield from (row for row in task_rows if (row.model, row.relation) in cells)


def task(part: Asking) -> list[Row] | HarnessError:
    """What a node does."""
    end_with_a_signal()
    try:
        return ask(replace(part, jobs=min(part.jobs, machine.cores())), lambda _: None)
    except HarnessError as error:
        return error
