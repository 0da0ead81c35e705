"""What probe shows of the bugs of the catalogue: recorded in each scenario's ``probe.json``.

The file has a loop that meets the bug, written by hand, and what ``python -m harness signatures``
recorded of it with the releases of ``buggy`` and ``fixed``. A bug that no loop can show has a
reason instead of a loop.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.probe import evaluation, own_loss, own_steps, slope
from harness.probe.prober import Loop
from harness.probe.questions import Answers
from harness.probe.ratios import term
from harness.system.files import write_whole

FILE = "probe.json"
"""In the folder of a scenario."""

SUSPECT = (
    own_loss.OWN,
    own_loss.SHIFTED,
    own_steps.FALLS,
    own_steps.APPLIED_FIRST,
    own_steps.CLIPPED,
    own_steps.LOST,
    own_steps.SAME_ORDER,
    slope.ALONG,
)
"""How the notes begin that no right loop has."""

NUMBERS = re.compile(r"-?\d[\d.]*(e-?\d+)?%?")


@dataclass(frozen=True)
class Shown:
    """What a layout shows first."""

    layout: str
    """``ranks``, ``accumulation``, ``both``, ``resume``; empty for a note of the whole probe."""
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
        """Whether a right loop does not show it: a broken relation, or one of some notes."""
        return not self.note or self.relation.startswith(SUSPECT)

    @property
    def kind(self) -> tuple[str, str, str]:
        """What tells it from another finding: of a note in SUSPECT only how it begins, as a change
        of its other words must not make another finding of it."""
        begins = next((b for b in SUSPECT if self.note and self.relation.startswith(b)), "")
        return self.layout, begins or self.relation, self.times


@dataclass(frozen=True)
class Recorded:
    """What a probe of one variant showed."""

    pins: Mapping[str, str]
    torch: str
    date: str
    statuses: Mapping[str, str]
    """By layout: as the reference, broken, no answer."""
    shown: tuple[Shown, ...] = ()
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
    recorded: Mapping[str, Recorded] = field(default_factory=dict)
    """By variant."""
    needs: tuple[str, ...] = ()
    """Arguments without which our loops do not have the bug: another fault may look the same."""

    @property
    def shown(self) -> list[Shown]:
        """What the release with the bug shows and the one without it does not."""
        right = {one.kind for one in self._shown("fixed")}
        return [one for one in self._shown("buggy") if one.is_news and one.kind not in right]

    @property
    def silent(self) -> dict[str, list[str]]:
        """By variant, why there is no answer, or the layouts without one.

        Without the bug, a layout whose samples it breaks may have none: where shards of a stream
        go to the ranks, their rows are not those of the reference's step, and that none comes twice
        is all that can be compared.
        """
        samples = {one.layout for one in self._shown("buggy") if one.relation == "samples"}
        found = {}
        for variant, one in self.recorded.items():
            by_design = samples if variant == "fixed" else set()
            silent = {kind for kind, status in one.statuses.items() if status == "no answer"}
            found[variant] = [one.no_answer] if one.no_answer else sorted(silent - by_design)
        return {variant: reasons for variant, reasons in found.items() if reasons}

    @property
    def false_alarms(self) -> list[Shown]:
        """The relations that are broken in the release without the bug."""
        return [one for one in self._shown("fixed") if not one.note]

    def _shown(self, variant: str) -> tuple[Shown, ...]:
        return self.recorded[variant].shown if variant in self.recorded else ()


def without_numbers(note: str) -> str:
    """A note with # for each number: its kind."""
    return NUMBERS.sub("#", note)


def shown(answers: Answers) -> tuple[Shown, ...]:
    """What a probe has shown, to be compared with that of a catalogued bug."""
    found = []
    for one in answers.layouts:
        own = [each for each in one.broken[1:] if each.relation == evaluation.RELATION]
        for first in [*one.broken[:1], *own]:  # an evaluation is not a result of the first
            layout, ratio = one.layout, None if first.ratio is None else round(first.ratio, 6)
            known = first.ratio is not None and first.meaning
            times = term(first.ratio or 0.0, layout.times, layout.k) if known else ""
            found.append(Shown(layout.kind, first.relation, ratio, times, one.step))
        found += [Shown(one.layout.kind, without_numbers(note), note=True) for note in one.notes]
    found += [Shown("", without_numbers(note), note=True) for note in answers.notes]
    return tuple(found)


def recorded(answers: Answers, pins: Mapping[str, str], torch: str, date: str) -> Recorded:
    statuses = {found.layout.kind: found.status for found in answers.layouts}
    return Recorded(dict(pins), torch, date, statuses, shown(answers))


def read(folder: Path) -> Signature | None:
    """The signature in a scenario's folder; None if it has none."""
    file = folder / FILE
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    loop = content.get("loop")
    return Signature(
        Loop(**{**loop, "layouts": tuple(loop.get("layouts", ()))}) if loop else None,
        content.get("why", ""),
        content.get("concerns_loops", True),
        {variant: from_json(one) for variant, one in content.get("recorded", {}).items()},
        tuple(content.get("needs", ())),
    )


def from_json(content: Mapping[str, Any]) -> Recorded:
    """What was written with ``dataclasses.asdict``."""
    found = tuple(Shown(**one) for one in content["shown"])
    return Recorded(**{**content, "shown": found})


def write(folder: Path, found: Mapping[str, Recorded]) -> None:
    """Replace what was recorded; what was written by hand stays."""
    file = folder / FILE
    content = json.loads(file.read_text(encoding="utf-8"))
    content["recorded"] = {variant: asdict(one) for variant, one in found.items()}
    write_whole(file, json.dumps(content, indent=1) + "\n")
