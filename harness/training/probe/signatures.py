"""What probe shows of each bug of the catalogue, recorded in ``probe.json`` of its scenario.

The file has a loop that meets the bug, written by hand, and the results that
``python -m harness signatures`` recorded with the releases of ``buggy`` and ``fixed``. A bug that
no loop can show has a reason instead of a loop. A probe compares its own results with these, and so
names the known bugs of the installed releases that look like them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.spec import BUGGY
from harness.bugs.packages import import_name
from harness.rank.models.answer import AnswerStatus
from harness.rank.probe.findings import saves, workers
from harness.rank.probe.findings.unlike import UNLIKE
from harness.rank.probe.recording import losses
from harness.system.files import write_whole
from harness.training.probe import slopes
from harness.training.probe.answers import Answers
from harness.training.probe.compare import plausibility, whole_run
from harness.training.probe.compare.comparison import OTHER_LOSS
from harness.training.probe.compare.faults import term
from harness.training.probe.layouts import ACCUMULATION, AGAINST, BOTH, RANKS
from harness.training.probe.notes import without_numbers
from harness.training.probe.prober import Loop

FILE = "probe.json"
"""In the folder of a scenario."""

SUSPECT = (
    losses.OWN,
    plausibility.OUTSIDE,
    losses.SHIFTED,
    losses.ENDLESS,
    plausibility.FALLS,
    plausibility.APPLIED_FIRST,
    plausibility.NOT_STEPPED,
    plausibility.UNHELD,
    plausibility.CLIPPED,
    plausibility.IN_EVALUATION,
    plausibility.LOST,
    plausibility.SAME_ORDER,
    slopes.ALONG,
    OTHER_LOSS,
    workers.WORKERS,
    saves.SAVED,
    saves.EVALUATED,
)
"""How the notes begin that no right loop has."""

MODEL = "model"
"""Stands for a layout where a relation of the script's model is wrong."""


@dataclass(frozen=True)
class Sign:
    """What a layout shows first."""

    layout: str
    """``ranks``, ``accumulation``, ``both``, ``resume``; empty for a note of the whole probe, and
    MODEL for a relation of the model."""
    relation: str
    """The first broken relation, or the note."""
    ratio: float | None = None
    times: str = ""
    """The ratio in terms of ranks and micro-batches, such as ``1/k``; empty if it is none."""
    step: int | None = None
    note: bool = False
    """Whether it is only a note, with # for each number."""

    @property
    def is_news(self) -> bool:
        """Whether no right loop shows it: a broken relation, or a note in SUSPECT."""
        return not self.note or self.relation.startswith(SUSPECT)

    @property
    def kind(self) -> tuple[str, str, str]:
        """Signs of the same kind are the same finding. Of a note in SUSPECT only the beginning
        counts, so that its other words may change."""
        begins = next((b for b in SUSPECT if self.note and self.relation.startswith(b)), "")
        return self.layout, begins or self.relation, self.times


@dataclass(frozen=True)
class ProbeResult:
    """What a probe of one variant showed."""

    pins: Mapping[str, str]
    torch: str
    date: str
    statuses: Mapping[str, str]
    """By layout: as the reference, broken, no answer. By relation of the model: its status."""
    shown: tuple[Sign, ...] = ()
    no_answer: str = ""
    """Why the reference gave none."""


@dataclass(frozen=True)
class Signature:
    """A scenario's loop, and what was recorded of it."""

    loop: Loop | None = None
    why: str = ""
    """In one line, why probe does not find the bug, or why there is no loop."""
    concerns_loops: bool = True
    """Whether a training loop can have the bug at all."""
    recorded: Mapping[str, ProbeResult] = field(default_factory=dict)
    """By variant."""

    @property
    def signs(self) -> list[Sign]:
        """The signs that the release with the bug shows and the one without it does not."""
        kinds_of_fixed = {one.kind for one in self._signs("fixed")}
        return [
            one for one in self._signs("buggy") if one.is_news and one.kind not in kinds_of_fixed
        ]

    @property
    def parts(self) -> set[str]:
        """The parts of a model, such as experts, that the loop has and the bug needs."""
        return _parts(self._signs("buggy"))

    @property
    def is_of_parts_of_a_model(self) -> bool:
        """Whether it shows only on ranks that are stages or parts of a model."""
        layouts = {one.layout for one in self.signs}
        same_rows = self.loop is not None and self.loop.settings().same_rows
        return same_rows and layouts <= {RANKS, BOTH}

    @property
    def silent(self) -> dict[str, list[str]]:
        """By variant, why there is no answer, or the layouts without one.

        If the bug breaks the samples of a layout, ``fixed`` may have no answer there: where ranks
        read shards of a stream, their rows differ from the reference's step, so only rows that come
        twice can be found.
        """
        samples = {one.layout for one in self._signs("buggy") if one.relation == "samples"}
        by_variant = {}
        for variant, record in self.recorded.items():
            by_design = samples if variant == "fixed" else set()
            silent = {kind for kind, status in record.statuses.items() if status == "no answer"}
            by_variant[variant] = (
                [record.no_answer] if record.no_answer else sorted(silent - by_design)
            )
        return {variant: reasons for variant, reasons in by_variant.items() if reasons}

    @property
    def false_alarms(self) -> list[Sign]:
        """The relations that are broken in the release without the bug."""
        return [one for one in self._signs("fixed") if not one.note]

    def _signs(self, variant: str) -> tuple[Sign, ...]:
        return self.recorded[variant].shown if variant in self.recorded else ()


def signs_of(answers: Answers) -> tuple[Sign, ...]:
    """The signs of a probe, to be compared with those of known bugs."""
    signs = []
    for answer in answers.layouts:
        evaluations = [each for each in answer.broken[1:] if each.relation == whole_run.EVALUATION]
        # An evaluation is not a result of the first fault.
        for fault in [*answer.broken[:1], *evaluations]:
            layout, ratio = answer.layout, None if fault.ratio is None else round(fault.ratio, 6)
            has_meaning = fault.ratio is not None and fault.meaning
            times = term(fault.ratio or 0.0, layout.rank_factor, layout.k) if has_meaning else ""
            signs.append(Sign(layout.kind, fault.relation, ratio, times, answer.step))
        signs += [
            Sign(answer.layout.kind, without_numbers(note), note=True) for note in answer.notes
        ]
    signs += [Sign("", without_numbers(note), note=True) for note in answers.notes]
    wrong_relations = [
        name for name, (status, _) in answers.relations.items() if status == AnswerStatus.WRONG
    ]
    signs += [Sign(MODEL, name) for name in wrong_relations]
    return tuple(signs)


def recorded(answers: Answers, pins: Mapping[str, str], torch: str, date: str) -> ProbeResult:
    statuses = {found.layout.kind: found.status for found in answers.layouts}
    statuses |= {name: status for name, (status, _) in answers.relations.items()}
    return ProbeResult(dict(pins), torch, date, statuses, signs_of(answers))


def read(folder: Path) -> Signature | None:
    """The signature in a scenario's folder; None if it has none."""
    file = folder / FILE
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    loop: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in (content.get("loop") or {}).items()
    }
    results = {}
    for variant, result in content.get("recorded", {}).items():  # which asdict wrote
        signs = tuple(Sign(**sign) for sign in result["shown"])
        results[variant] = ProbeResult(**{**result, "shown": signs})
    return Signature(
        Loop(**loop) if loop else None,
        content.get("why", ""),
        content.get("concerns_loops", True),
        results,
    )


def write(folder: Path, by_variant: Mapping[str, ProbeResult]) -> None:
    """Replace the recorded results; what was written by hand stays."""
    file = folder / FILE
    content = json.loads(file.read_text(encoding="utf-8"))
    content["recorded"] = {variant: asdict(one) for variant, one in by_variant.items()}
    write_whole(file, json.dumps(content, indent=1) + "\n")


Affected = Callable[[str, Mapping[str, str]], str]
"""Says why releases, by package, have a bug; returns "" if nothing shows it.
``harness.bugs.lookup`` answers, which must not be imported here."""


@dataclass(frozen=True)
class KnownBug:
    """A bug of the catalogue that may be the one that was found."""

    name: str
    title: str
    why: str
    """What says that the installed releases have it."""


def known_bugs(answers: Answers, affected: Affected) -> list[KnownBug]:
    """The bugs of the imported releases whose signature matches the answers, in one environment or
    in the other."""
    ours, others = [], []
    for found in answers.layouts:
        if found.layout.kind != AGAINST:
            ours.append(found)
        elif kind := KINDS.get((found.layout.rank_factor > 1, found.layout.k > 1)):
            others.append(replace(found, layout=replace(found.layout, kind=kind)))
    bugs: dict[str, KnownBug] = {}
    in_other = replace(answers.other or Answers(""), layouts=others)
    for each in (replace(answers, layouts=ours), in_other):
        layouts = {found.layout.kind for found in each.layouts if not found.no_answer}
        layouts |= {MODEL} if each.relations else set()
        for bug in with_signature(
            signs_of(each), layouts, each.releases, affected, each.imported, each.same_rows
        ):
            if bug.name not in each.impossible:
                bugs.setdefault(bug.name, bug)
    return list(bugs.values())


KINDS = {(True, False): RANKS, (False, True): ACCUMULATION, (True, True): BOTH}
"""A layout in the other environment as one of this, by whether it has several ranks and several
micro-batches."""


def with_signature(
    signs: Iterable[Sign],
    layouts: set[str],
    releases: Mapping[str, str],
    affected: Affected,
    imported: Set[str] = frozenset(),
    same_rows: bool = False,
) -> Iterator[KnownBug]:
    """The bugs that match these signs, that these releases have, and whose code the script
    imported, if that is known. A bug of experts needs a model with experts, and one of ranks that
    have parts of a model needs such ranks.

    ``layouts`` were compared; ``releases`` are by module. Only recorded results count: an unknown
    status is no reason to suspect a bug.
    """
    signs = list(signs)
    news = {one.kind for one in signs if one.is_news}
    parts = _parts(signs)
    for name in catalog.sound() if news else ():
        signature = read(catalog.folder(name))
        kinds = {one.kind for one in signature.signs} if signature is not None else set()
        kinds = {kind for kind in kinds if kind[0] in ("", *layouts)}
        if signature is None or not (kinds and kinds <= news):  # all that it shows was found
            continue
        if not signature.parts <= parts or (signature.is_of_parts_of_a_model and not same_rows):
            continue
        scenario = catalog.scenario(name)
        defects = scenario.variant(BUGGY).defects
        if imported and not imported >= {*scenario.files, *(defect.file for defect in defects)}:
            continue
        have = {p: releases[import_name(p)] for p in scenario.pins if import_name(p) in releases}
        if scenario.subject in have and (why := affected(name, have)):
            yield KnownBug(name, scenario.title, why)


def _parts(signs: Iterable[Sign]) -> set[str]:
    """The parts that differ between layouts by design, as the notes say."""
    notes = [one.relation for one in signs if one.note]
    return {why for why in map(without_numbers, UNLIKE.values()) if any(why in n for n in notes)}
