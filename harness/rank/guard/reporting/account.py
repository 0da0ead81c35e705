"""What rank 0 knows of the trainings of this process, judges and tells."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..check_table import NAMES
from ..checks.checkpoints import State
from ..checks.samples import COMMON_ROWS
from ..checks.views import Memory
from ..data.rows import Rows
from ..fence import Fence
from ..judge import judge
from ..posting.budget import FIRST_CHECKS, LEAST_SECONDS, LEAST_STEPS, Cost
from ..posting.posts import LAST, Alarm, Post
from ..process import restarts, world
from ..sampling.collectives import Collectives
from ..sampling.optimizers import MOMENTS
from ..sentences import few, known_bug, number_of, progress, say, watched_run
from ..settings import Settings
from ..states.schedules import Schedules
from ..states.training_states import stamp
from ..trainings.training import UNNUMBERED, Training
from ..trainings.trainings import MOST_OPTIMIZERS, Trainings
from .mailbox import Mailbox
from .report import FaultReport
from .trackers import Trackers

UNCOUNTED = {
    "": "guard did not see them",
    "none": "they come from other functions than torch's, or from a compiled model",
    "several": "each is made of several, and how much each should count is the loop's choice",
    "separate": "several of them belong to one batch",
    "terms": "they have other terms",
}
"""Why losses are not counted."""

PERIOD = 30.0
"""Seconds between two summaries of a training that runs, after its first checks and without a new
fault."""
SAVED_STATES = "saved_states.json"


class SavedStates:
    """What was trained when checkpoints were saved: a later process goes on with it. It is kept in
    the folder of the report, never beside the user's checkpoints."""

    def __init__(self, folder: str) -> None:
        self._path = os.path.join(folder, SAVED_STATES) if folder else ""

    @cached_property
    def states(self) -> list[State]:
        """Those of earlier processes, and of this one."""
        try:
            with open(self._path, encoding="utf-8") as file:
                return [State.of_json(one) for one in json.load(file)]
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return []  # there is none, or another release wrote it

    def write(self) -> None:
        """Keep them. A checkpoint that is still being written gets its stamp the next time."""
        for one in self.states:
            if one.is_of_this_process and not one.stamp:
                one.stamp = stamp(one.path)
        if not self._path:
            return
        part = f"{self._path}.{os.getpid()}"
        try:
            with open(part, "w", encoding="utf-8") as file:
                json.dump([one.to_json() for one in self.states], file)
            os.replace(part, self._path)
        except OSError as error:  # such as a full disk: the checks go on
            say(f"what was saved is not kept: {error.strerror}: {self._path}")
            self._path = ""


class Account:
    """The trainings of a process, what was judged of them, and what was told."""

    def __init__(
        self,
        settings: Settings,
        trainings: Trainings,
        fence: Fence,
        rows: Rows,
        schedules: Schedules,
        collectives: Collectives,
    ) -> None:
        self.settings, self.trainings, self.fence = settings, trainings, fence
        self.rows, self.schedules = rows, schedules
        self._collectives = collectives
        self.report = FaultReport(settings)
        self.trackers = Trackers()
        self._saves = SavedStates(settings.saves or settings.out)
        self.mailbox = Mailbox(self._judge, settings.budget / 100, settings.every)
        self._memories: dict[int, Memory] = {}
        self._facts: dict[str, Any] = {}
        self._written = 0.0
        """When the summary was written last, in seconds."""
        self._silent: list[int] = []
        """The ranks without which no check could be judged."""

    def end(self) -> None:
        """Judge what is left, and tell the summary: the training is over."""
        posts = []
        for training in self.trainings if self.mailbox.has_begun else ():
            is_numbered = training.number != UNNUMBERED
            if is_numbered and self.mailbox.world > 1:  # what rank 0 does not know yet
                self.mailbox.send(training, training.last_post(self.mailbox.rank))
            elif is_numbered and training.states:
                posts.append([training.last_post(self.mailbox.rank)])
        unjudged_posts = self.mailbox.close()
        self._silent = self.mailbox.silent_ranks()
        for unjudged in [*unjudged_posts, *posts]:
            self._judge(unjudged)
        if not self.mailbox.rank:
            self._finish()

    def tell(self, training: Training, alarm: Alarm) -> None:
        """Tell an alarm now, on rank 0: a training that takes no step has no check either."""
        if self.mailbox.rank:
            training.alarms.append(alarm)
            return
        self.mailbox.call(lambda: self.tell_now(training, alarm))

    def tell_now(self, training: Training, alarm: Alarm) -> None:
        """Tell an alarm in the thread that judges."""
        alarms = [replace(alarm, ranks=[0])]
        self._send(self.report.tell(training.steps, training.number, alarms))
        self._write(has_ended=False)

    # -- judging, in the thread of rank 0 --

    def _judge(self, posts: list[Post]) -> None:
        memory = self._memories.setdefault(posts[0].optimizer, Memory(saved=self._saves.states))
        earlier = (one for n, one in self._memories.items() if n < posts[0].optimizer)
        memory.unpaired = memory.unpaired or any(one.unpaired for one in earlier)
        if posts[0].check != LAST:
            self.report.note_check(posts[0].step)
        if facts := posts[0].run.facts:
            self.report.say(watched_run(facts["releases"], facts["settings"]))
            self.report.bugs, self._facts = facts.pop("known_bugs"), facts
            for bug in self.report.bugs:
                if bug["certain"]:  # an alarm names the others, if it has the signature
                    say(known_bug(bug))
        alarms = judge(posts, memory)
        if memory.has_saved:
            self._saves.write()
            memory.has_saved = False
        lines = self.report.tell(posts[0].step, posts[0].optimizer, alarms)
        self._send(lines)
        if posts[0].check == 1:
            is_first = self.report.checks == 1
            self.report.say_not_seen(self._not_seen() if is_first else memory.not_seen.values())
        is_late = time.monotonic() - self._written >= PERIOD
        if self.report.checks <= FIRST_CHECKS or lines or is_late:
            self._write(has_ended=False)

    # -- telling --

    def _finish(self) -> None:
        """Tell the summary, on rank 0, and write it for the last time."""
        steps, cost = self._progress()
        lines = self.report.tell(steps, 0, self._late_alarms())
        self._send(lines, is_last=True)
        if self.trainings:  # otherwise guard had a fault, and "no alarm" would be untrue
            checks, faults, ms = self.report.checks, len(self.report.faults), 1000 * cost.each
            self.report.say(progress(steps, restarts(), checks, cost.percent, ms, faults))
        self.report.say_not_seen(self._not_seen())
        self._write(has_ended=True)

    def _send(self, lines: list[str], is_last: bool = False) -> None:
        """Send what the user's trackers get."""
        steps, cost = self._progress()
        numbers = {
            "guard/alarms": float(len(self.report.faults)),
            "guard/cost_percent": cost.percent,
            "guard/check_ms": 1000 * cost.each,
        }
        self.trackers.send(steps, numbers, lines, is_last)

    def _progress(self) -> tuple[int, Cost]:
        """The steps of the training that has the most, and what its checks have cost. A fault of
        guard may come before there is one."""
        if not self.trainings:
            return 0, Cost()
        training = max(self.trainings, key=lambda one: one.steps)
        return training.steps, training.costs.total(training.turn.check, self.mailbox.seconds)

    def _not_seen(self) -> list[str]:
        """What is not compared in this training, a sentence for each reason."""
        memories, trainings = list(self._memories.values()), self.trainings
        sentences = [text for memory in memories for text in memory.not_seen.values()]
        sentences += [
            f"optimizer {one.number} is not checked: it steps too seldom"
            for one in trainings
            if one.turn.is_left_out
        ]
        if trainings.optimizers > MOST_OPTIMIZERS == len(trainings):
            sentences.append(
                f"only {MOST_OPTIMIZERS} of {trainings.optimizers} optimizers are checked"
            )
        if not self.report.checks and self._silent:
            sentences.append(f"all steps: rank {few(self._silent)} took none that is watched")
        elif trainings and not self.report.checks and not trainings.backwards:
            sentences.append("all steps: no backward, such as loss.backward(), made the gradients")
        if self.mailbox.has_begun and self.mailbox.world < world():
            sentences.append(
                f"whether it is meant that each of {world()} ranks trains a model of its own: the "
                "first steps had no process group (init_process_group)"
            )
        if trainings.began_late:
            sentences.append(
                "the first step after guard(): its optimizer was made before, with others: call "
                "guard() before the optimizer is made"
            )
        if left_out := self.mailbox.left_out:
            sentences.append(
                f"{number_of(left_out, 'check')} of --every {self.settings.every}: ranks agree on "
                f"the next one, which takes them {LEAST_STEPS + 1} steps and {LEAST_SECONDS} s"
            )
        if self.fence.error and trainings:
            last, _ = self._progress()
            sentences.insert(0, f"steps after step {last} are not checked: guard had a fault")
        if self.report.checks:
            checks = self.settings.checks or NAMES
            reasons = (one.losses.uncounted for one in reversed(memories))
            uncounted = next(filter(None, reasons), "")
            blind_checks = blind(self._compared(), self._facts, bool(self.rows.loaders), uncounted)
            sentences += [text for check, text in blind_checks.items() if check in checks]
        return list(dict.fromkeys(sentences))

    def _compared(self) -> dict[str, int]:
        """By check, how much it has compared, of all optimizers."""
        memories = self._memories.values()
        return {name: number for memory in memories for name, number in memory.compared.items()}

    def _write(self, has_ended: bool) -> None:
        """Write the summary so far, which does not grow with the length of a training: it may be
        killed."""
        self._written = time.monotonic()
        steps, cost = self._progress()
        self.report.files.write(
            {
                "steps": steps,
                "checks": self.report.checks,
                "checked": list(self.report.steps),
                "cost_percent": cost.percent,
                "check_ms": 1000 * cost.each,
                "faults": [fault.to_json() for fault in self.report.faults.values()],
                "compared": self._compared(),
                "ended": has_ended,
                "exit_code": 0,
                "restarts": restarts(),
                "setup_s": sum(one.costs.setup for one in self.trainings),
                "not_seen": self._not_seen(),
                "notes": [*self.mailbox.notes, *self.trackers.notes],
                "error": self.fence.error,
                **self._facts,
                "known_bugs": self.report.bugs,
            }
        )

    def _late_alarms(self) -> list[Alarm]:
        """What this rank noticed after its last check."""
        alarms = [*self.rows.alarms, *self.schedules.alarms]
        alarms += [one for each in self.trainings for one in each.alarms]
        late = [replace(one, ranks=[self.mailbox.rank]) for one in alarms]
        for memory in self._memories.values():
            if not self._collectives.reason:  # the loop may have averaged since the last check
                late += memory.apart.held.values()
            memory.not_seen.pop("alone", None)
        return late


def blind(
    compared: Mapping[str, int], facts: Mapping[str, Any], has_rows: bool, uncounted: str = ""
) -> dict[str, str]:
    """The checks that compare nothing in this training, each with the reason. ``compared`` says of
    how much they have compared, and ``uncounted`` why losses are not counted."""
    settings = facts.get("settings", {})
    ranks, optimizer = settings.get("ranks", 0), settings.get("optimizer", "")
    sentences = {}
    if ranks == 1:
        sentences["replicas"] = "nothing is compared between ranks: there is one"
    elif ranks and not compared.get("replicas"):
        sentences["replicas"] = "weights are not compared: no two ranks have copies of one"
    if optimizer and optimizer not in MOMENTS:
        sentences["updates"] = (
            f"how far a step moves weights, and whether it does: {optimizer} has no known formula"
        )
    if "accumulation" not in compared:
        sentences["accumulation"] = f"losses are not counted: {UNCOUNTED[uncounted]}"
    if not has_rows:
        sentences["samples"] = "rows are not compared: no DataLoader of torch gave them"
    elif ranks > 1 and "samples" not in compared:
        sentences["samples"] = (
            "rows are not compared: they were read before the steps, or by two loaders"
        )
    if "samples" in sentences and compared.get(COMMON_ROWS):
        sentences["samples"] += ". Only gradients show if all ranks have the same rows"
    return sentences
