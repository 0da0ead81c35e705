"""Pages and tables of docs/ that are made from recorded runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from packaging.version import Version

from harness.bugs import affected, catalog, lookup, pins, reasons
from harness.bugs.api.spec import BUGGY, Scenario
from harness.bugs.cell import Status
from harness.bugs.lookup import RIGHT, UNKNOWN, WRONG
from harness.bugs.periods import Period, newest, periods, tested
from harness.bugs.pins import TORCH
from harness.models import recorded
from harness.models.recorded import RecordedAnswers
from harness.probe import signatures
from harness.probe.compare.relations import MISTAKES
from harness.probe.signatures import Sign, Signature
from harness.rank.models.answer import Answer, AnswerStatus
from harness.rank.models.heads import CAUSAL, HEADS, parsed
from harness.rank.models.relations import QUESTIONS
from harness.system.errors import Inconclusive
from harness.system.installation import for_readers
from harness.system.text import count, markdown, markdown_table

INTRODUCTION = (
    "Every status is from a run of that release as published, by `matrix` or `bisect`, and so is "
    "every end of a range; the bug's page has the days. *Right before* and *right after* are the "
    "nearest releases that were tested and are not affected. Where one is missing, no such release "
    "was tested, or none can run here."
)


def with_part(text: str, part: str, content: str) -> str:
    """A text with new content between the marks of a generated part. Raises Inconclusive without
    these marks."""
    begin, end = f"<!-- {part}: generated -->", f"<!-- end of {part} -->"
    before, _, rest = text.partition(begin)
    if end not in rest:
        raise Inconclusive(f"the page has no marks for its generated part: {begin} and {end}")
    return f"{before}{begin}\n\n{for_readers(content)}\n\n{end}{rest.partition(end)[2]}"


def updated(page: str, text: str) -> str:
    """The text of a page of docs/ with its generated parts made anew."""
    for part, content in PARTS[page].items():
        text = with_part(text, part, content())
    return text


def _bugs() -> str:
    """The table of all bugs."""
    columns = ["scenario", "package", "what happens", "harm", "how it shows", "the bug is in"]
    rows = [_of_bug(name, catalog.scenario(name)) for name in catalog.sound()]
    return markdown_table(columns, rows)


def _of_bug(name: str, bug: Scenario) -> list[str]:
    subject = catalog.subject(name)
    return [link(name), subject, bug.title, bug.harm, bug.visibility, _where(bug)]


def _where(scenario: Scenario) -> str:
    """Whether a published release has the bug, or an edit puts it back."""
    if scenario.variant(BUGGY).defects:
        return "an edited release"
    if not scenario.pins:
        return "the installed torch"
    release = {**scenario.pins, **scenario.pins_of(BUGGY)}[scenario.subject]
    return f"published release {release}"


def _ranges() -> str:
    """A row for each period of each bug, and torch's releases as a grid."""
    columns = ["bug", "package", "right before", "affected", "right after", "tested"]
    parts = [
        "## All bugs",
        INTRODUCTION,
        markdown_table(columns, [row for name in catalog.sound() for row in _rows(name)]),
        "## Torch",
        markdown_table(*_grid()),
    ]
    return "\n\n".join(parts)


def _rows(name: str) -> Iterator[list[str]]:
    found = periods(name)
    subject = next(iter(catalog.scenario(name).pins), TORCH)
    count = str(len(tested(name)))
    for period in found:
        yield [
            link(name),
            subject,
            period.before or "",
            _affected(period),
            "alive" if period.alive else period.after or "",
            count,
        ]
    if not found and (last := newest(name)):
        yield [link(name), subject, "", "none: an edit puts it back", last[0], count]


def _affected(period: Period) -> str:
    one = period.first == period.last
    return period.first if one else f"{period.first} to {period.last}"


def _grid() -> tuple[list[str], list[list[str]]]:
    """The columns and rows: the status of each bug of torch in each tested release."""
    found = {n: tested(n) for n in catalog.sound() if TORCH in catalog.scenario(n).pins}
    releases = sorted({v for statuses in found.values() for v in statuses}, key=Version)
    rows = [
        [link(name), *(str(statuses.get(release, "")) for release in releases)]
        for name, statuses in found.items()
    ]
    return ["bug", *releases], rows


LAYOUTS = {
    "ranks": "ranks",
    "accumulation": "micro-batches",
    "both": "ranks x micro-batches",
    "resume": "resume",
    "seed": "another seed",
    "ranks-resume": "resume on several ranks",
    signatures.MODEL: "the script's model",
}


def _found_by_probe() -> str:
    """The figures and the table, in Markdown."""
    known = {name: signatures.read(catalog.folder(name)) for name in catalog.sound()}
    found = {n: s for n, s in known.items() if s and s.concerns_loops and s.shown}
    missed = {n: s for n, s in known.items() if s and s.concerns_loops and not s.shown}
    other = [n for n, s in known.items() if s and not s.concerns_loops]
    unseen = [n for n, s in known.items() if s is None]
    total, alarms = len(found) + len(missed), [n for n, s in found.items() if s.false_alarms]
    rows = [[link(name), _release(s), _first(s)] for name, s in found.items()]
    rows += [[link(name), "", f"missed: {markdown(s.why)}"] for name, s in missed.items()]
    return "\n\n".join(
        [
            f"`probe` finds {len(found)} of the {total} bugs that concern a training loop. Of the "
            f"releases without these bugs, {len(alarms) or 'none'} {_alarm(alarms)}."
            + (f" Not about loops: {', '.join(map(link, other))}." if other else "")
            + (f" Not tried yet: {', '.join(map(link, unseen))}." if unseen else ""),
            markdown_table(["bug", "probed with", "what breaks first"], rows),
        ]
    )


def _alarm(names: list[str]) -> str:
    if not names:
        return "has a broken relation"
    return f"{'has' if len(names) == 1 else 'have'} a broken relation ({', '.join(names)})"


def link(name: str) -> str:
    """A link to a bug's page."""
    return f"[`{name}`](../scenarios/{catalog.folder(name).parent.name}/{name}/README.md)"


def _release(signature: Signature) -> str:
    pins = signature.recorded["buggy"].pins
    return ", ".join(f"{name} {version}" for name, version in list(pins.items())[:1])


def _first(signature: Signature) -> str:
    """What is broken in which layouts; the notes only where nothing is."""
    broken = [one for one in signature.shown if not one.note]
    return "; ".join(_grouped(broken)) or "; ".join(
        f"a note: {markdown(one.relation)}" for one in signature.shown
    )


def _grouped(broken: list[Sign]) -> Iterator[str]:
    groups: dict[tuple[str, str], list[str]] = {}
    for one in broken:
        groups.setdefault((one.relation, one.times), []).append(LAYOUTS[one.layout])
    for (relation, times), layouts in groups.items():
        ratio = f", {times} times: {MISTAKES[times][0]}" if times else ""
        yield f"{' and '.join(layouts)}: {relation}{ratio}"


def _inferred() -> str:
    """How often an inferred status is right."""
    counts: Counter[str] = sum(map(lookup.judged_counts, catalog.sound()), Counter())
    wrong = [
        f"{name} {' with '.join(map(str, point))}"
        for name in catalog.sound()
        for point, how in lookup.judged(name)
        if how == WRONG
    ]
    day = max(cell.date for name in catalog.sound() for cell in affected.of(name))
    return (
        f"Until {day}, {counts.total()} results were recorded. {counts[RIGHT]} are inferred right "
        f"from the others, {counts[UNKNOWN]} stay unknown, and {counts[WRONG]} are inferred wrong: "
        f"{', '.join(wrong) or 'none'}."
    )


def inconclusive() -> str:
    """Why recorded results are inconclusive: how many have which reason."""
    cells = [(name, cell) for name in catalog.sound() for cell in affected.of(name)]
    uncertain = [each for each in cells if each[1].status is Status.INCONCLUSIVE]
    found, decided = Counter[str](), Counter[str]()
    examples: dict[str, str] = {}
    for name, cell in uncertain:
        reason = reasons.kind(cell.reason)
        found[reason] += 1
        decided[reason] += lookup.lookup(name, cell.pins).status is not None
        examples.setdefault(reason, f"{link(name)} in {pins.describe(cell.pins)}")
    rows = [[r, str(n), str(decided[r]), examples[r]] for r, n in found.most_common()]
    columns = ["reason", "results", "of these, the status is known", "for example"]
    return (
        f"{len(uncertain)} of {len(cells):,} recorded results are inconclusive. The status of "
        f"{decided.total()} of these releases is known nevertheless, because upstream's history "
        "shows that they cannot have the bug, or because another run has decided it.\n\n"
        + markdown_table(columns, rows)
    )


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "bugs.md": {"the bugs": _bugs},
    "probe_results.md": {"the bugs that probe finds": _found_by_probe},
    "ranges.md": {"ranges": _ranges},
    "trust.md": {"inferred": _inferred, "inconclusive": inconclusive},
}
"""The generated parts of pages of docs/, and what makes them."""


MODEL_SIGNS = {
    AnswerStatus.RIGHT: "✓",
    AnswerStatus.WRONG: "✗",
    AnswerStatus.REFUSED: "-",
    AnswerStatus.NO_ANSWER: "",
}
"""Each status in a cell of the table."""

MODELS_LEGEND = (
    "✓ is right, ✗ is wrong. - is refused: the model raises an error, or says that it does not "
    "offer the feature. An empty cell has no answer. A release behind ✗ is the first recorded one "
    "with the fault; all later ones have it, too. ✗ without a release is wrong in every recorded "
    "release in which it was tested."
)

PACKING = "packed_with_cache"
"""The bug that these models do not show, as their configurations have no cache."""


@dataclass(frozen=True)
class ModelCell:
    """A relation of a model."""

    relation: str
    status: AnswerStatus
    since: str
    """The oldest recorded release from which on it is wrong, if one before it was not."""
    reason: str

    def __str__(self) -> str:
        return f"{MODEL_SIGNS[self.status]} {self.since}".strip()


@dataclass(frozen=True)
class ModelLine:
    """A model, and what is known of it."""

    model: str
    cells: tuple[ModelCell, ...]

    @property
    def wrong(self) -> list[ModelCell]:
        return [cell for cell in self.cells if cell.status is AnswerStatus.WRONG]


def newest_recorded(head: str = CAUSAL) -> RecordedAnswers | None:
    """The newest release of transformers whose models with a head were recorded."""
    found = (one for one in reversed(recorded.all_recorded()) if one.with_head(head))
    return next(found, None)


def model_lines() -> Iterator[ModelLine]:
    """A line for each model of the newest recorded release, head by head."""
    for head in HEADS:
        one = newest_recorded(head)
        for model, answers in sorted(one.with_head(head).items()) if one else ():
            yield ModelLine(
                model, tuple(_model_cell(model, r, answers[r]) for r in QUESTIONS if r in answers)
            )


def _model_cell(model: str, relation: str, answer: Answer) -> ModelCell:
    first, before = recorded.wrong_since(model, relation)
    return ModelCell(relation, answer.status, first if before else "", answer.reason)


def models_page() -> str:
    """The page docs/models_table.md: models by relations, as recorded for the newest release."""
    one, lines = newest_recorded(), list(model_lines())
    shown = [line for line in lines if parsed(line.model).head == CAUSAL]
    note = "<!-- Made by `python -m harness pages`. Write nothing here. -->"
    parts = ["# Which features of which model are right", note]
    if one is None:
        return "\n\n".join([*parts, "No release was recorded."]) + "\n"
    releases = ", ".join(each.release for each in recorded.all_recorded())
    wrong = sum(len(line.wrong) for line in shown)
    parts += [
        f"{len(shown)} causal language models of transformers {one.release} were tested on "
        f"{one.day} on a CPU. {wrong} cells are wrong. [models](models.md) explains the relations, "
        "which are the columns. `distributed-bugs models MODEL` tests a model again and prints "
        "reasons.",
        "Packing was tested with `use_cache=False`. With `use_cache=True`, the default of "
        f"transformers, more models are wrong: {link(PACKING)}.",
        MODELS_LEGEND,
        _models_table(shown),
        f"Recorded releases: {releases}.",
    ]
    for head in HEADS:
        if head != CAUSAL:
            parts += _head_section(
                head, [line for line in lines if parsed(line.model).head == head]
            )
    return "\n\n".join(parts) + "\n"


def _head_section(head: str, lines: list[ModelLine]) -> list[str]:
    """The heading and the table of a head; nothing if it was not recorded."""
    one = newest_recorded(head)
    if one is None:
        return []
    wrong = sum(len(line.wrong) for line in lines)
    models = count(len(lines), "model")
    counted = f"{models} of transformers {one.release}: {wrong} cells are wrong."
    return [f"## `{head}`", counted, _models_table(lines)]


def _models_table(shown: list[ModelLine]) -> str:
    asked = [r for r in QUESTIONS if any(c.relation == r for line in shown for c in line.cells)]
    rows = []
    for line in shown:
        of = {cell.relation: str(cell) for cell in line.cells}
        rows.append([parsed(line.model).model, *(of.get(relation, "") for relation in asked)])
    return markdown_table(["model", *(name.replace("_", " ") for name in asked)], rows)
