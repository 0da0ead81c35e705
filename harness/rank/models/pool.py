"""Forks a process for each model, as many at once as there are cores, and reads its answers.

A relation that crashes or hangs costs one answer: the model's other relations get a new process.
"""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.rank import forks
from harness.rank.forks import Child, Children
from harness.rank.models import subjects
from harness.rank.models.answer import Answer, AnswerStatus, answer_of, no_answer
from harness.rank.models.asking import ask_alone, unbuilt
from harness.rank.models.pairs import ask_on_ranks, on_gpus, unbuilt_apart
from harness.rank.models.relations import QUESTIONS

Progress = Callable[[str, str, Answer], object]
"""A function that is called with a model, a relation and its answer."""


@dataclass(frozen=True)
class Task:
    """Relations that one process asks of one model."""

    model: str
    relations: tuple[str, ...]


def tasks(model: str, relations: Iterable[str]) -> list[Task]:
    """Relations of one rank share a process, relations of two ranks another: see ``pairs``."""
    names = list(relations)
    alone = tuple(name for name in names if QUESTIONS[name].ranks == 1)
    pairs = tuple(name for name in names if QUESTIONS[name].ranks > 1)
    return [Task(model, part) for part in (alone, pairs) if part]


@dataclass
class _Process:
    """What a running process does."""

    task: Task
    """What it has not answered yet."""
    folder: Path
    current: str = ""
    """The relation that it is asking; empty while it makes the model."""


def ask_all(waiting: Iterable[Task], jobs: int, limit: float, report: Progress) -> None:
    """Run all tasks, ``jobs`` at once; each relation has ``limit`` seconds."""
    with Children() as children:
        pool = _Pool(children, deque(waiting), jobs, limit, report)
        pool.fill()
        for child, message in children.hear():
            if message is None:
                pool.end(child)
            else:
                pool.take(child, message)
            pool.fill()


@dataclass
class _Pool:
    """The running processes, and the tasks that wait for one."""

    children: Children
    waiting: deque[Task]
    jobs: int
    limit: float
    report: Progress
    running: dict[Child, _Process] = field(default_factory=dict)

    def fill(self) -> None:
        """Start as many processes as may run at once."""
        while self.waiting and len(self.running) < self.jobs:
            self._start(self.waiting.popleft())

    def _start(self, task: Task) -> None:
        """Import what the model needs, so that its processes share it; then fork."""
        try:
            subjects.prepare(task.model)
        except Exception as error:
            self._give_up(task, no_answer(error))
            return
        folder = Path(tempfile.mkdtemp(prefix="models-"))
        child = self.children.start(partial(_ask, task, folder), session=True)
        child.allow(self.limit)
        self.running[child] = _Process(task, folder)

    def take(self, child: Child, message: Mapping[str, Any]) -> None:
        """Take what a process reports: which relation it begins, or the answer."""
        child.allow(self.limit)
        if "begins" in message:
            self.running[child].current = message["begins"]
        else:
            self._answer(self.running[child], message["relation"], answer_of(message))

    def _answer(self, process: _Process, relation: str, answer: Answer) -> None:
        relations = tuple(name for name in process.task.relations if name != relation)
        process.task, process.current = replace(process.task, relations=relations), ""
        self.report(process.task.model, relation, answer)

    def end(self, child: Child) -> None:
        """The relation that a process was checking when it ended has no answer. The other ones that
        are missing get a new process."""
        process = self.running.pop(child)
        shutil.rmtree(process.folder, ignore_errors=True)
        if not process.task.relations:
            return
        code = child.code or 0
        if child.late:
            why = f"no answer within {self.limit:.0f} s"
        elif code < 0:
            why = f"the process was ended by {signal.Signals(-code).name}"
        else:
            why = f"the process ended with exit code {code}"
        answer = Answer(AnswerStatus.NO_ANSWER, why)
        if not process.current:  # the model cannot even be made
            self._give_up(process.task, answer)
            return
        self._answer(process, process.current, answer)
        if process.task.relations:
            self.waiting.appendleft(process.task)

    def _give_up(self, task: Task, answer: Answer) -> None:
        for relation in task.relations:
            self.report(task.model, relation, answer)


def _ask(task: Task, folder: Path) -> None:
    """Check the relations of a task, and report each answer."""
    subject = subjects.subject(task.model, folder)
    has_ranks = any(QUESTIONS[name].ranks > 1 for name in task.relations)
    failure = (unbuilt_apart if has_ranks and on_gpus() else unbuilt)(subject)
    for name in task.relations:
        forks.report({"begins": name})
        if failure:
            answer = Answer(AnswerStatus.NO_ANSWER, failure)
        else:
            answer = (ask_alone if QUESTIONS[name].ranks == 1 else ask_on_ranks)(name, subject)
        forks.report({"relation": name, **answer.to_json()})
