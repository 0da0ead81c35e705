"""The answers of a probe as text, JSON and JUnit's XML."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from harness.bugs.api.numbers import named
from harness.probe.compare import whole_run
from harness.probe.compare.comparison import Compared
from harness.probe.compare.relations import BEGAN_AGAIN, BETWEEN, several, times
from harness.probe.layouts import ACCUMULATION, BOTH, RANKS, RANKS_RESUME, RESUME, SEED, Layout
from harness.probe.questions import Answers
from harness.rank.probe.own_files import Written
from harness.system.errors import ExitCode
from harness.system.text import count

if TYPE_CHECKING:
    from harness.probe.signatures import KnownBug

WIDTH = 26

UNSEEN = "probe did not see which rows the model is given; --without samples accepts that"

OWN_COPIES = "Each run had its own copy, which is deleted: your files are as they were"

SHARED = (
    "all runs shared them: a script that loads what it finds there goes on where another run "
    "stopped. This machine allows no mounts of its own to a process"
)

FAULTS = {
    "weights": "it begins with other weights",
    BETWEEN: "its weights change outside of optimizer.step",
    "optimizer": "the optimizer's state is lost",
    "samples": "it trains on other samples",
    "stale gradients": "gradients of the step before are left",
    "gradient": "it has another gradient",
    "clipped gradient": "clipping leaves another gradient",
    "loss": "it has another loss",
    "learning rate": "it has another learning rate",
    "update": "its steps go elsewhere",
    "steps": "it takes another number of steps",
    "order of samples": "it draws the samples in the same order",
    "evaluation": "an evaluation reports another loss",
    "schedule": "the schedule of the learning rate has another length",
}
"""What a broken relation means."""

RIGHT, WRONG, NO_ANSWER = "right", "wrong", "no answer"

RELATION_NAMES = {
    "packing": "packed rows",
    "padding_right": "padding on the right",
    "padding_left": "padding on the left",
    "generation": "generated with a cache",
    "buffers": "the buffers that no checkpoint has",
}
"""The relations that are asked of the script's model."""

SEPARATE = (whole_run.EVALUATION, whole_run.SCHEDULE, "learning rate", "optimizer", "samples")
"""Relations that do not follow from another one: each has a line of its own."""


def exit_code(answers: Answers) -> int:
    """1 if a relation is broken, otherwise 3 if a layout gave no answer, or if the model refused a
    relation, or if nobody knows which rows it was given; 0 only if all did."""
    asked = [status for status, _ in answers.relations.values()]
    if any(found.broken for found in answers.layouts) or WRONG in asked:
        return ExitCode.NOT_AS_EXPECTED
    unclear = not (answers.layouts or asked) or any(found.no_answer for found in answers.layouts)
    unclear = unclear or answers.unseen or any(status != RIGHT for status in asked)
    return ExitCode.INCONCLUSIVE if unclear else ExitCode.AS_EXPECTED


def text(answers: Answers, seconds: float, known: Sequence[KnownBug] = ()) -> Iterator[str]:
    """The lines of the report."""
    yield headline(answers)
    yield f"{f'reference: {answers.reference}':{WIDTH}}  {answers.about}"
    if answers.on_cpu:
        yield f"{'done on the CPU':{WIDTH}}  {_counted(answers.on_cpu)}"
    reported: set[tuple[str, ...]] = set()
    for found in answers.layouts:
        yield from _layout(found, reported)
    for name, (status_, reason) in answers.relations.items():
        yield f"{RELATION_NAMES[name]:{WIDTH}}  {_asked(status_)}{reason and ': '}{reason}"
    if files := _written(answers.written):
        yield f"{'files written':{WIDTH}}  {files}"
    if answers.unseen:
        yield f"{'samples':{WIDTH}}  NO ANSWER: {UNSEEN}"
    for note in answers.notes:
        yield f"note: {note}"
    yield "not tested:"
    yield from (f"    {what}" for what in answers.not_tested)
    if known:
        yield "known bugs with the same signature that these releases have:"
        yield from (f"    {bug.name}: {bug.title}. {bug.why}" for bug in known)
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
    broken = [found for found in answers.layouts if found.broken]
    if broken:
        faults: dict[str, list[str]] = {_fault(one): [] for one in broken}
        for one in broken:
            faults[_fault(one)].append(where(one.layout))
        each = (f"{_listed(places)}, {fault}" for fault, places in faults.items())
        return f"{answers.script} is not right: {'; '.join(each)}"
    if wrong := [n for n, (status_, _) in answers.relations.items() if status_ == WRONG]:
        names = _listed([RELATION_NAMES[name] for name in wrong])
        return f"the model of {answers.script} is not right: {names}"
    if answers.relations and not answers.layouts:
        same = [RELATION_NAMES[n] for n, (s, _) in answers.relations.items() if s == RIGHT]
        text_ = f" is right: {_listed(same)}" if same else ": no answer"
        return f"the model of {answers.script}{text_}"
    silent = [found for found in answers.layouts if found.no_answer]
    suspect = f". {count(len(answers.notes), 'note')} below" if answers.notes else ""
    compared = _listed([where(one.layout) for one in answers.layouts if not one.no_answer])
    right = f"{answers.script} trains the same {compared}" if compared else ""
    if silent or not right:
        gone = f"{answers.script}: no answer {_listed([where(one.layout) for one in silent])}"
        return (f"{gone}; it trains the same {compared}" if right else gone) + suspect
    unseen = ", as far as probe sees: not its samples" if answers.unseen else ""
    return f"{right}{unseen}{suspect}"


def status(found: Compared) -> str:
    """A line about a layout that was just compared."""
    if found.no_answer:
        return f"{found.layout.name}: no answer"
    return f"{found.layout.name}: {_fault(found) if found.broken else 'as the reference'}"


def where(layout: Layout) -> str:
    """A layout in the words of a user: ``on 2 ranks``."""
    ranks = f"on {layout.world} ranks"
    return {
        RANKS: ranks,
        ACCUMULATION: f"with {layout.k} micro-batches",
        BOTH: f"{ranks} with {layout.k} micro-batches",
        RESUME: "after a stop and resume",
        RANKS_RESUME: f"after a stop and resume {ranks}",
        SEED: "with another seed",
    }.get(layout.kind, layout.name)


def _fault(found: Compared) -> str:
    """The first broken relation of a layout, in the words of a user."""
    first = found.broken[0]
    if first.text == BEGAN_AGAIN:
        return "it begins again at step 1"
    fault = FAULTS.get(first.relation, first.relation)
    if first.meaning and first.ratio is not None:
        ratio = times(first.ratio, found.layout.times, found.layout.k, " the right one")
        return f"its {first.relation} is {ratio}"
    return fault


def _asked(status: str) -> str:
    """A status of ``models``, in capitals where layouts have capitals."""
    return {WRONG: "BROKEN", NO_ANSWER: "NO ANSWER"}.get(status, status)


def _listed(words: Sequence[str]) -> str:
    *most, last = words or [""]
    return f"{', '.join(most)} and {last}" if most else last


def _counted(asked: Mapping[str, int]) -> str:
    """What was asked, the most frequent first."""
    return ", ".join(f"{what} ({often} x)" for what, often in Counter(asked).most_common())


def _layout(found: Compared, reported: set[tuple[str, ...]]) -> Iterator[str]:
    """The lines about a layout; shorter if an earlier one has the same fault."""
    name = f"{found.layout.name:{WIDTH}}"
    if found.no_answer:
        yield f"{name}  NO ANSWER: {found.no_answer}"
        yield from (f"    | {line}" for line in found.log.splitlines())
    elif not found.broken:
        yield f"{name}  as the reference  ({found.seconds:.1f} s)"
    else:
        first, *others = found.broken
        step = f" at step {found.step}" if found.step else ""
        yield f"{name}  BROKEN{step}: {first.relation}  ({found.seconds:.1f} s)"
        fault = (first.relation, first.meaning, *first.parameters)
        yield f"    {first.text}" + (", as above" if fault in reported else "")
        if fault not in reported:
            yield from (f"    {detail}" for detail in first.details)
        reported.add(fault)
        results = [one.relation for one in others if one.relation not in SEPARATE]
        if results:
            yield f"    and as a result: {', '.join(results)}"
        yield from (f"    {one.relation}: {one.text}" for one in others if one.relation in SEPARATE)
    yield from (f"    note: {note}" for note in found.notes)


def as_json(answers: Answers, seconds: float, known: Sequence[KnownBug] = ()) -> dict[str, Any]:
    """The answers for programs; docs/probe_details.md describes the keys."""
    return {
        "exit_code": exit_code(answers),
        "headline": headline(answers),
        "reference": answers.about,
        "on_cpu": dict(answers.on_cpu),
        "written": sorted(answers.written.files),
        "removed": sorted(answers.written.removed),
        "layouts": [_layout_json(found) for found in answers.layouts],
        "relations": [
            {"relation": name, "status": status_, "reason": reason}
            for name, (status_, reason) in answers.relations.items()
        ],
        "notes": answers.notes,
        "not_tested": answers.not_tested,
        "known": [asdict(bug) for bug in known],
        "updates_compared": answers.decided,
        "seconds": round(seconds, 2),
    }


def _layout_json(found: Compared) -> dict[str, Any]:
    broken = [{**asdict(one), "ratio": _number(one.ratio)} for one in found.broken]
    return {
        "name": found.layout.name,
        "kind": found.layout.kind,
        "ranks": found.layout.world,
        "micro_batches": found.layout.k,
        "status": found.status,
        "step": found.step,
        "broken": broken,
        "notes": found.notes,
        "no_answer": found.no_answer or None,
        "spreads": {what: _number(times) for what, times in found.worst.items()},
        "seconds": round(found.seconds, 2),
    }


def _number(value: float | None) -> float | str | None:
    return None if value is None else named(value)


def as_junit(answers: Answers, seconds: float) -> str:
    """A test case for each layout: a broken relation fails it, no answer is an error."""
    states = [found.status for found in answers.layouts]
    suite = ElementTree.Element(
        "testsuite",
        name="probe",
        tests=str(len(states)),
        failures=str(states.count("broken")),
        errors=str(states.count("no answer")),
        time=f"{seconds:.2f}",
    )
    for found in answers.layouts:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="probe",
            name=found.layout.name,
            time=f"{found.seconds:.2f}",
        )
        if found.no_answer:
            ElementTree.SubElement(case, "error", message=found.no_answer).text = found.log
        elif found.broken:
            first = found.broken[0]
            message = f"{first.relation} at step {found.step}: {first.text}"
            lines = (f"{one.relation}: {one.text}" for one in found.broken)
            ElementTree.SubElement(case, "failure", message=message).text = "\n".join(lines)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
