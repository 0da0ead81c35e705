"""The answers of a probe as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from harness.bugs.api.numbers import named
from harness.rank.models.answer import AnswerStatus
from harness.rank.probe.own_files import Written
from harness.system.errors import ExitCode
from harness.system.text import count, listed, several
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import BROKEN_RELATIONS, in_words
from harness.training.probe.compare.relations import BEGAN_AGAIN
from harness.training.probe.layouts import (
    ACCUMULATION,
    AGAINST,
    BOTH,
    CHECKPOINTING,
    COMPILE,
    RANKS,
    RANKS_RESUME,
    RESUME,
    SEED,
    Layout,
)

if TYPE_CHECKING:
    from harness.training.probe.signatures import KnownBug

SCHEMA = 2
"""The version of the JSON, see docs/formats.md; it grows when a field changes or goes."""

WIDTH = 26

UNSEEN = "probe did not see which rows the model is given; --without samples accepts that"

OWN_COPIES = "Each run had its own copy, which is deleted: your files are as they were"

SHARED = (
    "all runs shared them: a script that loads what it finds there goes on where another run "
    "stopped. This machine allows no mounts of its own to a process"
)


RELATION_NAMES = {
    "packing": "packed rows",
    "padding_right": "padding on the right",
    "padding_left": "padding on the left",
    "generation": "generated with a cache",
    "buffers": "the buffers that no checkpoint has",
}
"""The names of the model's relations in a report."""


def exit_code(answers: Answers) -> int:
    """1 if a relation is broken; otherwise 3 if a layout gave no answer, if the model refused a
    relation, or if the rows are not known; otherwise 0."""
    statuses = [status for status, _ in answers.relations.values()]
    if any(found.broken for found in answers.layouts) or AnswerStatus.WRONG in statuses:
        return ExitCode.NOT_AS_EXPECTED
    unclear = not (answers.layouts or statuses) or any(found.no_answer for found in answers.layouts)
    unclear = unclear or answers.unseen or any(s != AnswerStatus.RIGHT for s in statuses)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED


def text(answers: Answers, seconds: float, bugs: Sequence[KnownBug] = ()) -> Iterator[str]:
    """The lines of the report."""
    yield headline(answers)
    yield f"{f'reference: {answers.reference}':{WIDTH}}  {answers.about}"
    if answers.on_cpu:
        counts = [f"{what} ({often} x)" for what, often in Counter(answers.on_cpu).most_common()]
        yield f"{'done on the CPU':{WIDTH}}  {', '.join(counts)}"
    reported: set[tuple[str, ...]] = set()
    for comparison in answers.layouts:
        yield from _layout(comparison, reported)
        if answers.where is not None and answers.where.layout == comparison.layout.name:
            yield f"    where: {answers.where.sentence}"
    for name, (status_, reason) in answers.relations.items():
        outcome = {"wrong": "BROKEN", "no answer": "NO ANSWER"}.get(status_, status_)
        yield f"{RELATION_NAMES[name]:{WIDTH}}  {outcome}{reason and ': '}{reason}"
    if files := _written(answers.written):
        yield f"{'files written':{WIDTH}}  {files}"
    if answers.unseen:
        yield f"{'samples':{WIDTH}}  NO ANSWER: {UNSEEN}"
    for note in answers.notes:
        yield f"note: {note}"
    yield "not tested:"
    yield from (f"    {what}" for what in answers.not_tested)
    if bugs:
        yield "known bugs with the same signature that these releases have:"
        yield from (f"    {bug.name}: {bug.title}. {bug.why}" for bug in bugs)
    yield f"{seconds:.1f} s"


def _written(written: Written) -> str:
    """What the runs wrote, and where; empty if nothing."""
    if written.refusal:
        return f"into your folders, and {SHARED} ({written.refusal})"
    parts = [several(sorted(written.files))] if written.files else []
    if written.removed:
        parts.append(f"removed: {several(sorted(written.removed))}")
    return f"{'; '.join(parts)}. {OWN_COPIES}" if parts else ""


def headline(answers: Answers) -> str:
    """What was found, in one sentence."""
    script, layouts = answers.script, answers.layouts
    if broken := [comparison for comparison in layouts if comparison.broken]:
        faults: dict[str, list[str]] = {}
        for comparison in broken:
            layout = comparison.layout
            place = WRONG_MODE.get(layout.kind) or where(layout)
            faults.setdefault(_fault(comparison), []).append(place)
        clauses = (f"{listed(places)}, {fault}" for fault, places in faults.items())
        is_other = all(comparison.layout.kind == AGAINST for comparison in broken)
        verdict = "does not train the same" if is_other else "is not right"
        return f"{script} {verdict}: {'; '.join(clauses)}"
    wrong, right = (
        listed([RELATION_NAMES[n] for n, (status_, _) in answers.relations.items() if status_ == s])
        for s in (AnswerStatus.WRONG, AnswerStatus.RIGHT)
    )
    if wrong:
        return f"the model of {script} is not right: {wrong}"
    if answers.relations and not layouts:
        return f"the model of {script}{f' is right: {right}' if right else ': no answer'}"
    silent, compared = (
        listed([where(one.layout) for one in layouts if bool(one.no_answer) == is_silent])
        for is_silent in (True, False)
    )
    suspect = f". {count(len(answers.notes), 'note')} below" if answers.notes else ""
    if silent or not compared:
        agreement = f"; it trains the same {compared}" if compared else ""
        return f"{script}: no answer {silent}{agreement}{suspect}"
    unseen = ", as far as probe sees: not its samples" if answers.unseen else ""
    return f"{script} trains the same {compared}{unseen}{suspect}"


def status(comparison: Compared) -> str:
    """A line about a layout that was just compared."""
    outcome = _fault(comparison) if comparison.broken else comparison.status
    return f"{comparison.layout.name}: {outcome}"


def where(layout: Layout) -> str:
    """A layout in the words of a user: ``on 2 ranks``."""
    ranks = f"on {layout.world} ranks"
    divided, _, environment = layout.name.partition(", ")
    on = f" on {divided}" if layout.world > layout.base or layout.k > 1 else ""
    return {
        RANKS: ranks,
        ACCUMULATION: f"with {layout.k} micro-batches",
        BOTH: f"{ranks} with {layout.k} micro-batches",
        RESUME: "after a stop and resume",
        RANKS_RESUME: f"after a stop and resume {ranks}",
        SEED: "with another seed",
        AGAINST: f"with {environment}{on}",
    }.get(layout.kind, layout.name)


WRONG_MODE = {COMPILE: "with torch.compile", CHECKPOINTING: "with recomputation"}
"""What is wrong if a mode is not as the reference: it may be the reference that uses it."""


def _fault(comparison: Compared) -> str:
    """The first broken relation of a layout, in the words of a user."""
    cause = comparison.broken[0]
    if cause.text == BEGAN_AGAIN:
        return "it begins again at step 1"
    if cause.meaning and cause.ratio is not None:
        ratio = in_words(cause.ratio, cause.meaning, " the right one")
        return f"its {cause.relation} is {ratio}"
    return BROKEN_RELATIONS[cause.relation].meaning


def _layout(comparison: Compared, reported: set[tuple[str, ...]]) -> Iterator[str]:
    """The lines about a layout; shorter if an earlier one has the same fault."""
    name = f"{comparison.layout.name:{WIDTH}}"
    if comparison.no_answer:
        yield f"{name}  NO ANSWER: {comparison.no_answer}"
        yield from (f"    | {line}" for line in comparison.log.splitlines())
    elif not comparison.broken:
        yield f"{name}  as the reference  ({comparison.seconds:.1f} s)"
    else:
        cause, *others = comparison.broken
        step = f" at step {comparison.step}" if comparison.step else ""
        yield f"{name}  BROKEN{step}: {cause.relation}  ({comparison.seconds:.1f} s)"
        size = "" if cause.ratio is None else f"{cause.ratio:.2g}"
        kind = cause.meaning or size or cause.text.partition(": ")[2]
        fault = (cause.relation, kind, *cause.parameters)
        yield f"    {cause.text}" + (", as above" if fault in reported else "")
        if fault not in reported:
            yield from (f"    {detail}" for detail in cause.details)
        reported.add(fault)
        separate = [one for one in others if BROKEN_RELATIONS[one.relation].is_separate]
        results = [one.relation for one in others if one not in separate]
        if results:
            yield f"    and as a result: {', '.join(results)}"
        yield from (f"    {one.relation}: {one.text}" for one in separate)
    if comparison.why:
        yield f"    run because {comparison.why}"
    yield from (f"    note: {note}" for note in comparison.notes)


def as_json(answers: Answers, seconds: float, bugs: Sequence[KnownBug] = ()) -> dict[str, Any]:
    """The answers for programs; docs/probe_details.md describes the keys."""
    place = answers.where
    return {
        "schema": SCHEMA,
        "exit_code": exit_code(answers),
        "headline": headline(answers),
        "text": "\n".join(text(answers, seconds, bugs)),
        "reference": answers.about,
        "on_cpu": dict(answers.on_cpu),
        "written": sorted(answers.written.files),
        "removed": sorted(answers.written.removed),
        "layouts": [_layout_json(found) for found in answers.layouts],
        "relations": [
            {"relation": name, "status": status_, "reason": reason}
            for name, (status_, reason) in answers.relations.items()
        ],
        "where": place and {**asdict(place), "text": place.sentence},
        "notes": answers.notes,
        "not_tested": answers.not_tested,
        "known": [asdict(bug) for bug in bugs],
        "loaded": sorted(answers.loaded),
        "updates_compared": answers.decided,
        "seconds": round(seconds, 2),
    }


def _layout_json(comparison: Compared) -> dict[str, Any]:
    broken = [{**asdict(one), "ratio": _number(one.ratio)} for one in comparison.broken]
    return {
        "name": comparison.layout.name,
        "kind": comparison.layout.kind,
        "why": comparison.why or None,
        "ranks": comparison.layout.world,
        "micro_batches": comparison.layout.k,
        "status": comparison.status,
        "step": comparison.step,
        "broken": broken,
        "notes": comparison.notes,
        "no_answer": comparison.no_answer or None,
        "spreads": {what: _number(times) for what, times in comparison.worst.items()},
        "seconds": round(comparison.seconds, 2),
    }


def _number(value: float | None) -> float | str | None:
    return None if value is None else named(value)
