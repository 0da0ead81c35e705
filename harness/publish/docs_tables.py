"""Pages and tables of docs/ that are made from recorded runs."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from packaging.version import Version

from harness.bugs import catalog, lookup, result_file
from harness.bugs.api.spec import BUGGY, HARMS, Scenario
from harness.bugs.lookup import RIGHT, UNKNOWN, WRONG
from harness.bugs.periods import alive, newest, periods, tested
from harness.bugs.pins import describe
from harness.bugs.results import Status
from harness.publish.gpu_evidence import evidence
from harness.rank.guard.check_table import CHECKS
from harness.rank.models.answer import AnswerStatus
from harness.rank.models.heads import CAUSAL, HEADS, parsed
from harness.rank.models.relations import QUESTIONS
from harness.system.documents import toml_of
from harness.system.errors import Inconclusive
from harness.system.files import ROOT
from harness.system.installation import for_readers
from harness.system.text import count, markdown, markdown_table
from harness.training.models import recorded
from harness.training.models.recorded import RecordedAnswers
from harness.training.probe import signatures
from harness.training.probe.compare.faults import MISTAKES
from harness.training.probe.signatures import Signature

INTRODUCTION = (
    "Every status is from a run of that release as published, by `matrix` or `bisect`, and so is "
    "every end of a range; the bug's page has the days. *Right before* and *right after* are the "
    "nearest releases that were tested and are not affected. *None before* a release means that by "
    "upstream's history those right before it cannot have the bug; the bug's page says why. Where "
    "an end is missing, no such release was tested, or none can run here."
)


def with_part(text: str, part: str, content: str) -> str:
    """A text with new content between the marks of a generated part. Raises Inconclusive without
    these marks."""
    begin, end = f"<!-- {part}: generated -->", f"<!-- end of {part} -->"
    before, _, tail = text.partition(begin)
    if end not in tail:
        raise Inconclusive(f"the page has no marks for its generated part: {begin} and {end}")
    return f"{before}{begin}\n\n{for_readers(content)}\n\n{end}{tail.partition(end)[2]}"


def updated(page: str, text: str) -> str:
    """The text of a page of docs/ with its parts generated again."""
    for part, content in PARTS[page].items():
        text = with_part(text, part, content())
    return text


def _numbers() -> str:
    """How many bugs there are, and how many of them the newest releases have."""
    names = catalog.sound()
    packages = {catalog.subject(name) for name in names}
    return (
        f"This project reproduces {len(names)} such bugs of {len(packages)} libraries. "
        f"{sum(alive(name) is not None for name in names)} of the bugs are in the newest releases "
        "that we tested."
    )


def _checks() -> str:
    """What each check of guard compares."""
    rows = [[f"`{check.name}`", check.compares] for check in CHECKS]
    return markdown_table(["check", "what it compares"], rows)


def _bugs() -> str:
    """The table of all bugs."""
    columns = ["scenario", "package", "what happens", "harm", "how it shows", "the bug is in"]
    rows = [
        [link(name), catalog.subject(name), bug.title, bug.harm, bug.visibility, _where(bug)]
        for name, bug in ((name, catalog.scenario(name)) for name in catalog.sound())
    ]
    return markdown_table(columns, rows)


def _where(scenario: Scenario) -> str:
    """Whether a published release has the bug, or an edit puts it back."""
    if scenario.variant(BUGGY).defects:
        return "an edited release"
    if not scenario.pins:
        return "the installed torch"
    release = scenario.release_of(BUGGY)
    return f"published release {release}"


def _ranges() -> str:
    """A row for each period of each bug."""
    columns = ["bug", "package", "right before", "affected", "right after", "tested"]
    table = markdown_table(columns, [row for name in catalog.sound() for row in _rows(name)])
    return "\n\n".join(["## All bugs", INTRODUCTION, table])


def _rows(name: str) -> Iterator[list[str]]:
    affected_periods = periods(name)
    subject = catalog.subject(name)
    count = str(len(tested(name)))
    for period in affected_periods:
        yield [
            link(name),
            subject,
            period.before or (f"none before {period.since}" if period.since else ""),
            " to ".join(dict.fromkeys((period.first, period.last))),
            "alive" if period.alive else period.after or "",
            count,
        ]
    if not affected_periods and (newest_test := newest(name)):
        yield [link(name), subject, "", "none: an edit puts it back", newest_test[0], count]


LAYOUTS = {
    "ranks": "ranks",
    "accumulation": "micro-batches",
    "both": "ranks x micro-batches",
    "resume": "resume",
    "seed": "another seed",
    "ranks-resume": "resume on several ranks",
    "compile": "the other mode of torch.compile",
    "checkpointing": "the other mode of checkpointing",
    signatures.MODEL: "the script's model",
}


def _found_by_probe() -> str:
    """The figures and the table, in Markdown."""
    by_bug = {name: signatures.read(catalog.folder(name)) for name in catalog.sound()}
    hits = {n: s for n, s in by_bug.items() if s and s.concerns_loops and s.signs}
    missed = {n: s for n, s in by_bug.items() if s and s.concerns_loops and not s.signs}
    other_bugs = [n for n, s in by_bug.items() if s and not s.concerns_loops]
    unseen = [n for n, s in by_bug.items() if s is None]
    total, alarms = len(hits) + len(missed), [n for n, s in hits.items() if s.false_alarms]
    verb, names = "have" if len(alarms) > 1 else "has", f" ({', '.join(alarms)})" if alarms else ""
    rows = []
    for name, signature in hits.items():
        release = list(signature.recorded["buggy"].pins.items())[:1]
        rows.append([link(name), describe(dict(release)), _broken_relations(signature)])
    rows += [[link(name), "", f"missed: {markdown(s.why)}"] for name, s in missed.items()]
    return "\n\n".join(
        [
            f"`probe` finds {len(hits)} of the {total} bugs that concern a training loop. Of the "
            f"releases without these bugs, {len(alarms) or 'none'} {verb} a broken relation{names}."
            + (f" Not about loops: {', '.join(map(link, other_bugs))}." if other_bugs else "")
            + (f" Not tried yet: {', '.join(map(link, unseen))}." if unseen else ""),
            markdown_table(["bug", "probed with", "what breaks first"], rows),
        ]
    )


def link(name: str, up: str = "..") -> str:
    """A link to a bug's page, from a page in docs/ or as far below the project as ``up`` says."""
    return f"[`{name}`]({up}/scenarios/{catalog.folder(name).parent.name}/{name}/README.md)"


def _broken_relations(signature: Signature) -> str:
    """The broken relations with their layouts; the notes if nothing is broken."""
    groups: dict[tuple[str, str], list[str]] = {}
    for sign in signature.signs:
        if not sign.note:
            groups.setdefault((sign.relation, sign.times), []).append(LAYOUTS[sign.layout])
    texts = []
    for (relation, times), layouts in groups.items():
        ratio = f", {times} times: {MISTAKES[times][0]}" if times else ""
        texts.append(f"{' and '.join(layouts)}: {relation}{ratio}")
    return "; ".join(texts or [f"a note: {markdown(sign.relation)}" for sign in signature.signs])


def _inferred() -> str:
    """How often an inferred status is right."""
    judged = [(name, *pair) for name in catalog.sound() for pair in lookup.judged(name)]
    counts = Counter(how for *_, how in judged)
    mistakes = [
        f"{name} {' with '.join(map(str, point))}" for name, point, how in judged if how == WRONG
    ]
    day = max(cell.first_day for name in catalog.sound() for cell in result_file.statuses(name))
    return (
        f"Until {day}, {counts.total()} results were recorded. {counts[RIGHT]} are inferred right "
        f"from the others, {counts[UNKNOWN]} stay unknown, and {counts[WRONG]} are inferred wrong: "
        f"{', '.join(mistakes) or 'none'}."
    )


def _story(*names: str) -> str:
    """Several bugs of one piece of upstream's code, and which releases have which."""
    bugs = [
        [
            str(number),
            link(name, "../.."),
            markdown(catalog.scenario(name).title),
            "<br>".join(map(str, periods(name))),
        ]
        for number, name in enumerate(names, 1)
    ]
    numbers = [number for number, *_ in bugs]
    rows = [[versions, *(SIGNS.get(s, "?") for s in of)] for versions, of in spans(names)]
    return "\n\n".join(
        [
            "## The bugs",
            markdown_table(["", "scenario", "what happens", "affected releases"], bugs),
            "## The releases",
            "The columns are the bugs by their numbers: ● affected, ○ not affected, ? not clear. A "
            "release that was not tested with a bug has the status of its tested neighbours, if "
            "they agree.",
            markdown_table([catalog.subject(names[0]), *numbers], rows),
        ]
    )


SIGNS = {Status.AFFECTED: "**●**", Status.NOT_AFFECTED: "○", None: ""}


def spans(names: Sequence[str]) -> list[tuple[str, tuple[Status | None, ...]]]:
    """Consecutive releases, ``1.0 to 1.2``, with the same status of each bug; None if it is not
    known."""
    by_bug = [tested(name) for name in names]
    versions = sorted({version for of in by_bug for version in of}, key=Version)
    rows = [
        (v, tuple(of.get(v) or lookup.infer(of.items(), v).status for of in by_bug))
        for v in versions
    ]
    groups = [(of, [v for v, _ in group]) for of, group in itertools.groupby(rows, itemgetter(1))]
    return [(" to ".join(dict.fromkeys((those[0], those[-1]))), of) for of, those in groups]


PARTS: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "../README.md": {"the numbers": _numbers},
    "bugs.md": {"the bugs": _bugs},
    "evidence.md": {"the runs on GPUs": evidence},
    "guard.md": {"checks": _checks},
    "probe_results.md": {"the bugs that probe finds": _found_by_probe},
    "ranges.md": {"ranges": _ranges},
    "stories/deepspeed_pipeline.md": {
        "the bugs": partial(_story, "pipeline_gas_never", "pipeline_gas_twice")
    },
    "stories/trainer_loss.md": {
        "the bugs": partial(
            _story,
            "trainer_token_mean",
            "trainer_gas_never",
            "trainer_counts_first_label",
            "label_smoothing_gas",
            "moe_aux_world",
            "trainer_gas_llama",
            "gpt2_counts_first_label",
            "heads_gas_ranks",
            "eval_loss_ranks",
            "trainer_gas_twice",
        )
    },
    "trust.md": {"inferred": _inferred},
}
"""The generated parts of pages, by their path from docs/, with the functions that generate them."""


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
    """A model, and its recorded relations."""

    model: str
    cells: tuple[ModelCell, ...]

    @property
    def wrong_cells(self) -> list[ModelCell]:
        return [cell for cell in self.cells if cell.status is AnswerStatus.WRONG]


def newest_recorded(head: str = CAUSAL) -> RecordedAnswers | None:
    """The newest release of transformers with recorded answers for a head."""
    candidates = (record for record in reversed(recorded.all_recorded()) if record.with_head(head))
    return next(candidates, None)


def model_lines() -> Iterator[ModelLine]:
    """A line for each model of the newest recorded release, head by head."""
    for head in HEADS:
        record = newest_recorded(head)
        for model, answers in sorted(record.with_head(head).items()) if record else ():
            cells = []
            for relation in filter(answers.get, QUESTIONS):
                answer, (release, before) = answers[relation], recorded.wrong_since(model, relation)
                since = release if before else ""
                cells.append(ModelCell(relation, answer.status, since, answer.reason))
            yield ModelLine(model, tuple(cells))


def models_page() -> str:
    """The page docs/models_table.md: models by relations, as recorded for the newest release."""
    record, lines = newest_recorded(), list(model_lines())
    causal_lines = [line for line in lines if parsed(line.model).head == CAUSAL]
    note = "<!-- Made by `python -m harness pages`. Write nothing here. -->"
    parts = ["# Which features of which model are right", note]
    if record is None:
        return "\n\n".join([*parts, "No release was recorded."]) + "\n"
    releases = ", ".join(each.release for each in recorded.all_recorded())
    wrong_count = sum(len(line.wrong_cells) for line in causal_lines)
    parts += [
        f"{len(causal_lines)} causal language models of transformers {record.release} were tested "
        f"on {record.day} on a CPU. {wrong_count} cells are wrong. [models](models.md) explains "
        "the relations, which are the columns. `distributed-bugs models MODEL` tests a model again "
        "and prints reasons.",
        "Packing was tested with `use_cache=False`. With `use_cache=True`, the default of "
        f"transformers, more models are wrong: {link(PACKING)}.",
        MODELS_LEGEND,
        _models_table(causal_lines),
        f"Recorded releases: {releases}.",
    ]
    for head in HEADS:
        if head != CAUSAL and (record := newest_recorded(head)):
            lines_of = [line for line in lines if parsed(line.model).head == head]
            wrong_count = sum(len(line.wrong_cells) for line in lines_of)
            models = f"{count(len(lines_of), 'model')} of transformers {record.release}"
            counted = f"{models}: {wrong_count} cells are wrong."
            parts += [f"## `{head}`", counted, _models_table(lines_of)]
    return "\n\n".join(parts) + "\n"


def _models_table(lines: list[ModelLine]) -> str:
    relations = [r for r in QUESTIONS if any(c.relation == r for line in lines for c in line.cells)]
    rows = []
    for status in (AnswerStatus.RIGHT, AnswerStatus.WRONG):
        counts = Counter(c.relation for line in lines for c in line.cells if c.status is status)
        rows.append([f"**{status}**, of all models", *(str(counts[r]) for r in relations)])
    for line in lines:
        of = {cell.relation: str(cell) for cell in line.cells}
        rows.append([parsed(line.model).model, *(of.get(relation, "") for relation in relations)])
    return markdown_table(["model", *(name.replace("_", " ") for name in relations)], rows)


def measurements_page() -> str:
    """The page docs/measurements.md: figures that were measured, from ``measurements.toml``."""
    content = toml_of((ROOT / "docs" / "measurements.toml").read_text(encoding="utf-8"))
    parts = [
        "# Measurements",
        "<!-- Made by `python -m harness pages` from measurements.toml. Write nothing here. -->",
        "Each figure has the command that measures it, the machine, the day, and the commit that "
        "recorded it. Several values are those of several runs.",
        *(part for program in content["program"] for part in _program(program)),
        *_guard_on_bugs(content["guard"]),
    ]
    return "\n\n".join(parts) + "\n"


def _program(program: dict[str, Any]) -> Iterator[str]:
    yield f"## {program['name']}"
    yield " ".join(filter(None, (f"`{program['command']}`", program.get("about"))))
    columns = ["figure", "value", "machine", "day", "commit"]
    rows = [{**row, "value": f"{row['value']} {row.get('unit', '')}"} for row in program["figures"]]
    yield markdown_table(
        columns, ([markdown(row[name].strip()) for name in columns] for row in rows)
    )


def _guard_on_bugs(guard: dict[str, Any]) -> Iterator[str]:
    """Which bugs of the catalogue ``guard`` detects, by harm and one by one."""
    detected = [*guard["detected"], *guard["other_alarm"], *guard["in_loop"]]
    missed = {name: group["reason"] for group in guard["missed"] for name in group["bugs"]}
    harms = [Counter(catalog.scenario(name).harm for name in names) for names in (detected, missed)]
    yield "## Which bugs guard detects"
    run = f"`{guard['command']}`, {guard['machine']}, {guard['day']}, commit {guard['commit']}."
    yield f"{run} {guard['about']}"
    counts = [[harm, *(str(of[harm]) for of in harms)] for harm in HARMS]
    yield markdown_table(["what the bug does", "detected", "missed"], counts)
    rows = [[link(name), "detected", ""] for name in guard["detected"]]
    why = "with a right alarm of another bug in a variant without this one"
    rows += [[link(name), "detected", why] for name in guard["other_alarm"]]
    why = "in its loop in `loops/`, with these releases (`python -m tests.guard.loops_of_bugs`)"
    rows += [[link(name), "detected", why] for name in guard["in_loop"]]
    rows += [[link(name), "missed", markdown(reason)] for name, reason in missed.items()]
    yield markdown_table(["bug", "guard", "why"], sorted(rows))
    names = ", ".join(map(link, guard["no_training"]))
    yield f"Without a training that `guard` can watch: {names}."
