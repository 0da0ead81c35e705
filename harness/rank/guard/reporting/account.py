"""What rank 0 knows of the trainings of this process, judges and tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...events import Written, instrument
from ..check_table import NAMES
from ..checks.views import Alarm, Memory
from ..data.rows import Rows
from ..fence import Fence
from ..judge import judge, left_alarms
from ..posting.budget import Cost
from ..posting.posts import LAST, LocalAlarm, Post
from ..process import restarts, world
from ..sampling.collectives import Collectives
from ..sentences import few, known_bug, watched_run
from ..settings import Settings
from ..states.schedules import Schedules
from ..trainings.training import UNNUMBERED, Training
from ..trainings.trainings import MOST_OPTIMIZERS, Trainings
from .mailbox import Mailbox
from .report import Report
from .saved_states import SavedStates
from .summary import Clock, blind, content, line, merged, not_seen, percent, too_often, uncounted
from .trackers import News, Trackers

BEGAN_LATE = (
    "the first step after guard(): its optimizer was made before, with others: call guard() before "
    "the optimizer is made"
)


ALONE = (
    "whether it is meant that each of {} ranks trains a model of its own: the first steps had no "
    "process group (init_process_group)"
)


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
        self.report = Report(settings)
        self.trackers = Trackers()
        self._saves = SavedStates(settings.saves or settings.out, self.report.print)
        self.mailbox = Mailbox(self._judge, settings.budget / 100, settings.every)
        self._memories: dict[int, Memory] = {}
        self._facts: dict[str, Any] = {}
        self._clock = Clock()
        self._silent: list[int] = []
        """The ranks without which no check could be judged."""

    def subscribe(self) -> None:
        """Subscribe to what the script logs: its trackers get alarms, too."""

        def wrote(event: Written) -> None:
            self.trackers.wrote(event.owner)

        instrument.on(Written, before=self.fence.guarded(wrote), when=self.fence.is_alive)

    def end(self) -> None:
        """Judge what is left, and tell the summary: the training is over."""
        posts = list(self._last_posts()) if self.mailbox.has_begun else []
        unjudged_posts = self.mailbox.close()
        self._silent = self.mailbox.silent_ranks()
        for unjudged in [*unjudged_posts, *posts]:
            self._judge(unjudged)
        if not self.mailbox.rank:
            self._finish()

    def tell(self, training: Training, alarm: LocalAlarm) -> None:
        """Tell an alarm now, on rank 0: a training that takes no step has no check either."""
        if self.mailbox.rank:
            training.alarms.append(alarm)
            return
        alarms = [Alarm(alarm.check, alarm.kind, alarm.text, [0], alarm.size)]
        self.mailbox.call(lambda: self.tell_now(training, alarms))

    def tell_now(self, training: Training, alarms: list[Alarm]) -> None:
        """Tell alarms in the thread that judges."""
        self._send(self.report.tell(training.steps, training.number, alarms))
        self._write(has_ended=False)

    def _last_posts(self) -> Iterator[list[Post]]:
        """Send what rank 0 does not know yet; yields that of a process that trains alone."""
        rank = self.mailbox.rank
        for training in (one for one in self.trainings if one.number != UNNUMBERED):
            if self.mailbox.world > 1:
                self.mailbox.send(training, training.last_post(rank))
            elif training.states:
                yield [training.last_post(rank)]

    # -- judging, in the thread of rank 0 --

    def _judge(self, posts: list[Post]) -> None:
        memory = self._memories.setdefault(posts[0].optimizer, Memory(saved=self._saves.states))
        if posts[0].check != LAST:
            self.report.note_check(posts[0].step)
        if posts[0].run.facts:
            self._tell_facts(posts[0].run.facts)
        alarms = judge(posts, memory)
        if memory.has_saved:
            self._saves.write()
            memory.has_saved = False
        lines = self.report.tell(posts[0].step, posts[0].optimizer, alarms)
        self._send(lines)
        if posts[0].check == 1:
            is_first = self.report.checks == 1
            self.report.say_not_seen(self._not_seen() if is_first else memory.not_seen.values())
        if self._clock.is_due(self.report.checks, len(self.report.faults)):
            self._write(has_ended=False)

    def _tell_facts(self, facts: dict[str, Any]) -> None:
        self.report.say(watched_run(facts["releases"], facts["settings"]))
        self.report.bugs = facts.pop("known_bugs")
        for bug in self.report.bugs:
            if bug["certain"]:  # an alarm names the others, if it has the signature
                self.report.print(known_bug(bug))
        self._facts = facts

    # -- telling --

    def _finish(self) -> None:
        """Tell the summary, on rank 0, and write it for the last time."""
        steps, cost = self._progress()
        lines = self.report.tell(steps, 0, self._late_alarms())
        self._send(lines, is_last=True)
        if self.trainings:  # otherwise guard had a fault, and "no alarm" would be untrue
            self.report.say(line(steps, self.report, cost, restarts()))
        self.report.say_not_seen(self._not_seen())
        self.trackers.close()
        self._write(has_ended=True)

    def _send(self, lines: list[str], is_last: bool = False) -> None:
        """Send what the user's trackers get."""
        steps, cost = self._progress()
        numbers = {
            "guard/alarms": float(len(self.report.faults)),
            "guard/cost_percent": percent(cost),
            "guard/check_ms": 1000 * cost.each,
        }
        self.trackers.send(News(steps, numbers, lines), is_last)

    def _progress(self) -> tuple[int, Cost]:
        """The steps of the training that has the most, and what its checks have cost. A fault of
        guard may come before there is one."""
        if not self.trainings:
            return 0, Cost()
        training = max(self.trainings, key=lambda one: one.steps)
        return training.steps, training.cost(self.mailbox.seconds)

    def _not_seen(self) -> list[str]:
        memories = self._memories.values()
        optimizers = self.trainings.optimizers
        sentences = not_seen(self.trainings, memories, optimizers, MOST_OPTIMIZERS)
        if not self.report.checks and self._silent:
            sentences.append(f"all steps: rank {few(self._silent)} took none that is watched")
        if self.mailbox.has_begun and self.mailbox.world < world():
            sentences.append(ALONE.format(world()))
        if self.trainings.began_late:
            sentences.append(BEGAN_LATE)
        if self.mailbox.left_out:
            sentences.append(too_often(self.settings.every, self.mailbox.left_out))
        if self.fence.error and self.trainings:
            last, _ = self._progress()
            sentences.insert(0, f"steps after step {last} are not checked: guard had a fault")
        if self.report.checks:
            checks = self.settings.checks or NAMES
            has_rows, why = bool(self.rows.loaders), uncounted(memories)
            reasons = blind(merged(memories), self._facts, has_rows, why)
            sentences += [text for check, text in reasons.items() if check in checks]
        return list(dict.fromkeys(sentences))

    def _write(self, has_ended: bool) -> None:
        steps, cost = self._progress()
        self.report.files.write(
            content(
                steps,
                self.report,
                cost,
                list(self._memories.values()),
                self._facts,
                ended=has_ended,
                exit_code=0,
                restarts=restarts(),
                setup_s=sum(one.costs.setup for one in self.trainings),
                not_seen=self._not_seen(),
                notes=[*self.mailbox.notes, *self.trackers.notes],
                error=self.fence.error,
            )
        )

    def _late_alarms(self) -> list[Alarm]:
        """What this rank noticed after its last check."""
        alarms = [*self.rows.alarms, *self.schedules.alarms]
        alarms += [one for each in self.trainings for one in each.alarms]
        rank = self.mailbox.rank
        late = [Alarm(one.check, one.kind, one.text, [rank], one.size) for one in alarms]
        for memory in self._memories.values():
            # The loop may have averaged since: then no check came to say so.
            late += left_alarms(memory, self._collectives.reason)
            memory.not_seen.pop("alone", None)
        return late
