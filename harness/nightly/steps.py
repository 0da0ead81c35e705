"""A night, from the index to what changed: the steps in their order.

All that a night learns goes into the history at once. So a night that was killed is gone on with by
the next one, and what it says in the end is read from the history.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any

from rich.console import Console

from harness import catalog, machine
from harness.config import RunConfig
from harness.nightly import selection
from harness.nightly.selection import Question
from harness.report import Progress, terminal
from harness.spec import ExitCode, Fault, Inconclusive, RunResult, UserError, Verdict
from harness.sweep import baseline, changes
from harness.sweep.cells import answers, place, room
from harness.sweep.changes import Releases
from harness.sweep.history import Change, History, Kind, Night, Own, ReleaseResult
from harness.sweep.suite import Done, side_by_side
from harness.upstream import index
from harness.upstream.index import Release

Index = Mapping[str, Sequence[Release] | Fault]
"""The releases of each package, or why it could not be asked."""


@dataclass
class Watch:
    """One night on its way through the steps; each adds what the next ones need."""

    history: History
    kind: Kind
    day: str
    """As of which the index is seen."""
    configs: Sequence[RunConfig]
    """What asks each scenario: its own pins, the variants buggy and fixed."""
    index: Index
    console: Console
    night: Night | None = None
    questions: Sequence[Question] = ()
    notes: list[str] = field(default_factory=list)
    """What could not be done, a line each."""
    lost: list[str] = field(default_factory=list)
    """Of those, the questions that could not be put."""
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Told:
    """What a night says in the end."""

    night: Night
    asked: Sequence[ReleaseResult]
    own: Sequence[Own]
    again: Sequence[ReleaseResult]
    """Of what was asked, what had given no answer before, and gives none now."""
    changes: Sequence[Change]
    notes: Sequence[str]
    releases: Releases
    seconds: float
    exit_code: int


def now() -> str:
    """The time, ISO, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def today() -> str:
    """The day, ISO, in UTC: the index counts so."""
    return now()[:10]


def ask_index(configs: Iterable[RunConfig], console: Console) -> dict[str, list[Release] | Fault]:
    """What the index says of every package that the scenarios pin, asked once."""
    lost = catalog.broken()
    names = sorted(
        {
            pin
            for c in configs
            if c.scenario not in lost
            for pin in catalog.scenario(c.scenario).pins
        }
    )
    with Progress(console) as progress:
        progress.say(f"asking the index about {', '.join(names) or 'nothing'}")
        return dict(index.releases_of(names))


def watch(
    history: History,
    kind: Kind,
    day: str,
    configs: Sequence[RunConfig],
    found: Index,
    console: Console,
) -> Told:
    """Watch one night, and keep it in the history. Raises UserError and Inconclusive for a day
    that the history, or the index, says cannot be."""
    watched = Watch(history, kind, day, configs, found, console)
    for step in STEPS:
        step(watched)
    return told(watched)


def check_the_day(watched: Watch) -> None:
    """Refuse a day that cannot be, before anything is written."""
    kinds = {night.kind for night in watched.history.nights()}
    if watched.kind is Kind.REPLAY and kinds - {Kind.REPLAY}:
        raise UserError(
            f"{watched.history.file.name} has nights of its own, which know of later releases: "
            "name another file for a replay with --history"
        )
    latest = max((r.day for of in _lists(watched.index) for r in of), default="")
    ahead = (date.fromisoformat(watched.day) + timedelta(days=1)).isoformat()
    if watched.kind is Kind.NIGHT and latest > ahead:
        raise Inconclusive(
            f"the index has a release of {latest}, and this machine says that it is {watched.day}: "
            "is its clock right?"
        )


def begin(watched: Watch) -> None:
    """Begin the night, or go on with the one that was killed; a history begins with the record."""
    if watched.kind is Kind.NIGHT:
        baseline.keep(watched.history, now())
    reached = bool(_lists(watched.index)) or not watched.index
    facts = {**machine.facts(), "source": machine.source(), "index": reached}
    watched.night = watched.history.begin(watched.kind, watched.day, now(), facts)


def keep_index(watched: Watch) -> None:
    """Keep what the index says, as it was on the day; tell first what was yanked since."""
    seen = [r for of in _lists(watched.index) for r in of if r.day <= watched.day]
    history, night = watched.history, _night(watched)
    yanked = changes.of_yanked(seen, _releases(history), history.answers())
    earlier = [change for _, change in history.changes(night.id) if change.kind == changes.YANKED]
    history.keep_changes(night, [*earlier, *(c for c in yanked if c not in earlier)])
    history.keep_releases(seen)
    watched.notes += list(
        dict.fromkeys(str(f) for f in watched.index.values() if isinstance(f, Fault))
    )
    if watched.notes:
        watched.notes.append("asked is what the history knows of them")


def choose(watched: Watch) -> None:
    """Decide what to ask, the releases in their order: what asks the same one shares overlays."""
    history = watched.history
    releases: dict[str, list[Release]] = {}
    for release in history.releases():
        releases.setdefault(release.package, []).append(release)
    nights = {night.id: night for night in history.nights()}
    found = [
        question
        for config in _sound(watched.configs)
        for question in selection.to_ask(
            config.scenario,
            releases,
            history.answers(scenario=config.scenario),
            nights,
            watched.day,
            place(config),
        )
    ]
    watched.questions = sorted(found, key=lambda q: (q.release.package, q.release.day, q.scenario))


def ask(watched: Watch) -> None:
    """Put the questions; each answer is kept as it comes."""
    if not watched.questions:
        return
    bases = {config.scenario: config for config in watched.configs}
    day = watched.day if watched.kind is Kind.REPLAY else None
    asking = [selection.config(bases[q.scenario], q, day) for q in watched.questions]
    jobs = asking[0].jobs or min(room(config) for config in asking)

    def lost(number: int, error: Exception) -> None:
        watched.lost.append(f"{_name(watched.questions[number])}: {error}")

    with closing(answers(asking, jobs=jobs, lost=lost)) as coming:
        for number, cell in coming:
            release = watched.questions[number].release
            watched.history.keep_answer(_night(watched), release.package, release.version, cell)
            how = "stored" if cell.stored else f"{cell.seconds:.1f} s"
            watched.console.print(f"  {_name(watched.questions[number])}: {cell.status}  [{how}]")


def run_ours(watched: Watch) -> None:
    """Run our own buggy and fixed; a replay has none, as a run of today tells nothing of then."""
    if watched.kind is Kind.REPLAY:
        return
    night = _night(watched)
    done = {o.scenario for o in watched.history.verdicts(night.id) if _reproduced(o)}
    left = [config for config in watched.configs if config.scenario not in done]
    if not left:
        return
    with closing(side_by_side(left, terminal(io.StringIO()))) as coming:
        for ended in coming:
            watched.history.keep_verdict(night, ended.result, ended.seconds, ended.folder)
            watched.console.print(_own_line(ended))


def say_what_changed(watched: Watch) -> None:
    """Compare with what was known before, and keep what changed."""
    history, night = watched.history, _night(watched)
    yanked = [change for _, change in history.changes(night.id) if change.kind == changes.YANKED]
    before = [asked for asked in history.answers() if asked.night < night.id]
    of_releases = changes.of_releases(
        history.answers(night.id), before, _releases(history), watched.day
    )
    own = [own for own in history.verdicts() if own.night < night.id]
    of_ours = changes.of_ours(history.verdicts(night.id), own, watched.day)
    history.keep_changes(night, [*yanked, *of_releases, *of_ours])


def end(watched: Watch) -> None:
    """Say that the night has come to its end."""
    watched.history.end(_night(watched), now())


STEPS: tuple[Callable[[Watch], None], ...] = (
    check_the_day,
    begin,
    keep_index,
    choose,
    ask,
    run_ours,
    say_what_changed,
    end,
)
"""The whole of a night, on one screen."""


def told(watched: Watch) -> Told:
    """What a night says, as the history has it."""
    history, number = watched.history, _night(watched).id
    (night,) = (night for night in history.nights() if night.id == number)
    found = [change for _, change in history.changes(number)]
    own, asked = history.verdicts(number), history.answers(number)
    before = {one.key for one in history.answers() if one.night < number}
    again = [one for one in asked if one.key in before and not one.cell.status.certain]
    return Told(
        night,
        asked,
        own,
        again,
        found,
        [*watched.notes, *watched.lost],
        _releases(history),
        time.monotonic() - watched.started,
        _exit_code(watched, own, found),
    )


def _exit_code(watched: Watch, own: Sequence[Own], found: Sequence[Change]) -> int:
    """1 where something got worse, or is ours and not as expected; 3 where something could not be
    asked."""
    codes = [int(one.result["exit_code"]) for one in own]
    codes = [code for code in codes if code != ExitCode.UNSUPPORTED]
    if changes.worse(found):
        codes.append(ExitCode.NOT_AS_EXPECTED)
    blind = not _night(watched).facts["index"] and not watched.history.releases()
    if watched.lost or blind:
        codes.append(ExitCode.INCONCLUSIVE)
    return ExitCode.worst(codes)


def _sound(configs: Iterable[RunConfig]) -> list[RunConfig]:
    """The configs of scenarios that can be used; the others are told of as our own."""
    lost = catalog.broken()
    return [config for config in configs if config.scenario not in lost]


def _lists(found: Index) -> list[Sequence[Release]]:
    return [of for of in found.values() if not isinstance(of, Fault)]


def _releases(history: History) -> dict[tuple[str, str], Release]:
    return {(release.package, release.version): release for release in history.releases()}


def _night(watched: Watch) -> Night:
    if watched.night is None:
        raise RuntimeError("the steps of a nightly are out of order: it has not begun")
    return watched.night


def _name(question: Question) -> str:
    release = question.release
    return f"{release.package} {release.version} ({release.day}), {question.scenario}"


def _reproduced(own: Own) -> bool:
    return own.verdict == str(Verdict.REPRODUCED)


def _own_line(ended: Done) -> str:
    result: RunResult = ended.result
    why = "; ".join(reason.splitlines()[0] for reason in result.reasons if reason)
    line = f"  {result.scenario}: {result.verdict}  [{ended.seconds:.1f} s]"
    return f"{line}  {why}" if why else line


def to_json(told: Told) -> dict[str, Any]:
    """A night as plain values."""
    night = told.night
    return {
        "night": {
            "kind": str(night.kind),
            "day": night.day,
            "started": night.started,
            "ended": night.ended,
            "facts": dict(night.facts),
        },
        "asked": [
            {"package": a.package, "version": a.version, **a.cell.to_json()} for a in told.asked
        ],
        "ours": [
            {
                "scenario": o.scenario,
                "verdict": o.verdict,
                "seconds": round(o.seconds, 2),
                "run": o.run,
            }
            for o in told.own
        ],
        "changes": [vars(change) for change in told.changes],
        "notes": list(told.notes),
        "seconds": round(told.seconds, 1),
        "exit_code": told.exit_code,
    }
