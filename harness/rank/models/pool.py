"""Forks a process for each model, as many at once as there are cores, and reads its answers.

A relation that crashes or hangs costs one answer: the model's other relations get a new process.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from harness.rank import supervisor
from harness.rank.models import subjects
from harness.rank.models.answer import Answer, AnswerStatus, answer_of
from harness.rank.models.asking import asked, unbuilt
from harness.rank.models.pairs import asked_on_ranks
from harness.rank.models.relations import QUESTIONS
from harness.system.text import complaint

POLL_SECONDS = 1.0

Report = Callable[[str, str, Answer], object]
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
class _Child:
    """A running process."""

    pid: int
    pipe: int
    task: Task
    folder: Path
    since: float = field(default_factory=time.monotonic)
    """When it last wrote something."""
    current: str = ""
    """The relation that it is asking; empty while it makes the model."""
    text: bytes = b""


def ask_all(waiting: Iterable[Task], jobs: int, limit: float, report: Report) -> None:
    """Run all tasks, ``jobs`` at once; each relation has ``limit`` seconds."""
    todo, running = deque(waiting), _Running(limit, report)
    with running.ready:
        while todo or running.children:
            while todo and len(running.children) < jobs:
                running.start(todo.popleft())
            todo.extendleft(running.wait())


class _Running:
    """The running processes."""

    def __init__(self, limit: float, report: Report) -> None:
        self.limit, self.report = limit, report
        self.ready = selectors.DefaultSelector()
        self.children: dict[int, _Child] = {}

    def start(self, task: Task) -> None:
        """Import what the model needs, so that its processes share it; then fork."""
        try:
            subjects.prepare(task.model)
        except Exception as error:
            self._give_up(task, Answer(AnswerStatus.NO_ANSWER, complaint(error)))
            return
        folder = Path(tempfile.mkdtemp(prefix="models-"))
        reads, writes = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reads)
            _be(task, folder, writes)
        os.close(writes)
        self.children[reads] = _Child(pid, reads, task, folder)
        self.ready.register(reads, selectors.EVENT_READ)

    def wait(self) -> list[Task]:
        """Read what the processes wrote; returns the unfinished tasks of those that ended early."""
        unfinished = []
        for key, _ in self.ready.select(POLL_SECONDS):
            child = self.children[key.fd]
            text = os.read(child.pipe, 1 << 16)
            if text:
                self._take(child, text)
            else:
                unfinished += self._end(child, "")
        for child in list(self.children.values()):
            if time.monotonic() - child.since > self.limit:
                unfinished += self._end(child, f"no answer within {self.limit:.0f} s")
        return unfinished

    def _take(self, child: _Child, text: bytes) -> None:
        *lines, child.text = (child.text + text).split(b"\n")
        for line in lines:
            message = json.loads(line)
            child.since = time.monotonic()
            if "begins" in message:
                child.current = message["begins"]
            else:
                self._answer(child, message["relation"], answer_of(message))

    def _answer(self, child: _Child, relation: str, answer: Answer) -> None:
        relations = tuple(name for name in child.task.relations if name != relation)
        child.task, child.current = replace(child.task, relations=relations), ""
        self.report(child.task.model, relation, answer)

    def _end(self, child: _Child, why: str) -> list[Task]:
        """End a process; the relation that it was checking has no answer."""
        del self.children[child.pipe]
        self.ready.unregister(child.pipe)
        os.close(child.pipe)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        _, status = os.waitpid(child.pid, 0)
        shutil.rmtree(child.folder, ignore_errors=True)
        if not child.task.relations:
            return []
        answer = Answer(AnswerStatus.NO_ANSWER, why or _ending(status), repeatable=not why)
        if not child.current:  # the model cannot even be made
            self._give_up(child.task, answer)
            return []
        self._answer(child, child.current, answer)
        return [child.task] if child.task.relations else []

    def _give_up(self, task: Task, answer: Answer) -> None:
        for relation in task.relations:
            self.report(task.model, relation, answer)


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"the process ended with exit code {os.waitstatus_to_exitcode(status)}"


def _be(task: Task, folder: Path, answers: int) -> NoReturn:
    """Check the relations of a task, and write each answer."""
    try:
        os.setsid()
        supervisor.end_with_parent()
        os.environ[supervisor.PARENT] = str(os.getpid())  # for the ranks
        _ask(task, folder, answers)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _ask(task: Task, folder: Path, answers: int) -> None:
    subject = subjects.subject(task.model, folder)
    failure = unbuilt(subject)
    for name in task.relations:
        _write(answers, {"begins": name})
        if failure:
            answer = Answer(AnswerStatus.NO_ANSWER, failure)
        else:
            answer = (asked if QUESTIONS[name].ranks == 1 else asked_on_ranks)(name, subject)
        _write(answers, {"relation": name, **answer.to_json()})


def _write(answers: int, message: dict[str, str]) -> None:
    os.write(answers, json.dumps(message).encode() + b"\n")
