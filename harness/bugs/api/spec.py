"""The vocabulary of the harness as types. Standard library only: every module may import this.

A *scenario* reproduces one documented bug. A *variant* of it runs as one *trial* on N ranks. The
ranks write *records*. Grading turns the records of a trial into an *outcome*, and the outcomes of
all trials of a run into a *verdict*.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.bugs.api.fields import F
from harness.bugs.api.knobs import Knob, params_class
from harness.bugs.api.settings import RANKS, trigger
from harness.python.results import Setting
from harness.system.conditions import Condition
from harness.system.errors import Inconclusive
from harness.system.text import StrEnum

BUGGY = "buggy"
FIXED = "fixed"
RELEASED = "released"
"""A variant of every scenario: the trigger of ``buggy`` on a release as published."""

HARMS = ("ruins training", "loses data", "wrong resume", "wrong metric", "stops")
"""What a bug can do to a run, most damaging first."""
VISIBILITIES = ("silent", "visible in the loss", "raises")
"""How a user can notice a bug, hardest first."""
UNDECIDED = "UNFINISHED"
"""The harm and the visibility of a scenario that is still being written."""


class Lane(StrEnum):
    """Where a trial runs, and with which collectives."""

    CPU = "cpu"
    GPU = "gpu"

    @property
    def backend(self) -> str:
        """The name of the ``torch.distributed`` backend of this lane."""
        return "nccl" if self is Lane.GPU else "gloo"


class Outcome(StrEnum):
    """What one trial showed. A crash is ``inconclusive``: it is never a reproduction."""

    SYMPTOM = "symptom"
    CLEAN = "clean"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"


class Verdict(StrEnum):
    """The result of all trials of a scenario."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"
    UNJUDGED = "unjudged"
    """``buggy`` and ``fixed`` were not both run."""


Edits = Iterable[tuple[Any, Any]]
"""The edit of a defect yields these: pairs of an old and a new node of a syntax tree."""


@dataclass(frozen=True)
class Defect:
    """An edit of upstream source that puts a bug back.

    Its function gets the syntax tree (``libcst``) of ``scope``, and yields exactly one pair of an
    old and a new node. An edit that matches nothing, or matches twice, stops the run.
    """

    upstream: str
    """The distribution that is edited, for example ``deepspeed``."""
    file: str
    """The file in it, relative to site-packages."""
    scope: str
    """The qualified name of the class or function that is edited."""
    edit: Callable[[Any], Edits] | str
    """The function, or where it is, as ``scenarios.torch.rrelu_checkpointed.scenario:never_early``:
    it is imported when it is needed."""
    about: str
    """What the edit does, and why that is the bug."""
    fits: str = ""
    """The releases that it was written for, as a requirement such as ``torch>=2.9``: any other one
    without its code is unsupported. Empty: then it is inconclusive."""
    name: str = ""
    """Empty: that of ``edit``."""

    def __post_init__(self) -> None:
        place = self.edit if isinstance(self.edit, str) else self.edit.__name__
        object.__setattr__(self, "name", self.name or place.rpartition(":")[2])

    @property
    def function(self) -> Callable[[Any], Edits]:
        """The function of the edit."""
        if not isinstance(self.edit, str):
            return self.edit
        module, _, name = self.edit.partition(":")
        function: Callable[[Any], Edits] = getattr(importlib.import_module(module), name)
        return function


@dataclass(frozen=True)
class Companion:
    """Pins that go with some releases of another package: ``when`` is like ``deepspeed<0.16``."""

    when: str
    pins: Mapping[str, str]
    why: str


@dataclass(frozen=True)
class Absent:
    """Releases that cannot have a bug, as upstream's own history shows: ``releases`` is like
    ``deepspeed<0.16``. What a run shows of such a release comes first."""

    releases: str
    why: str
    """It is read after "cannot have it": "the division came with 0.16.0"."""
    link: str = ""
    """The change or the file upstream that says so."""


@dataclass(frozen=True)
class Present(Absent):
    """Releases that have a bug, as somebody read in their source: none of them can be run here.
    ``why`` is read after "has it, as its source shows"."""


@dataclass(frozen=True)
class Variant:
    """One way to run a scenario, and its expected outcome."""

    about: str
    """A description; may be empty for a release as published."""
    expect: Outcome | None
    """``symptom`` for ``buggy``, otherwise ``clean``, unless the variant says otherwise; None if
    nothing is expected, as for ``released``."""
    defects: tuple[Defect, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that this variant changes; they override the user's."""
    pins: Mapping[str, str] = field(default_factory=dict)
    release: str = ""
    """The subject's release, if it is not the scenario's."""
    ranks: int | None = None
    """The number of ranks, if it is not the scenario's."""
    triggers: bool = True
    """Whether the trigger must occur. False for a control that switches it off."""


@dataclass(frozen=True)
class Scenario:
    """What is known of one documented bug: the content of its ``bug.toml``."""

    title: str
    """The wrong behaviour, in one sentence."""
    report: tuple[str, ...]
    """Where it was reported: links or citations."""
    fix: str
    symptom: str
    """The documented symptom, in the words of the report."""
    trigger: str
    """What a run must do to meet the bug; it is read after "only with"."""
    pins: Mapping[str, str]
    """Upstream releases. The first is the subject; its day decides the dependencies."""
    variants: Mapping[str, Variant]
    knobs: Mapping[str, Knob] = field(default_factory=dict)
    """Its parameters, by name."""
    ranks: int = 2
    """Of a trial, if its variant names no other number."""
    lanes: tuple[Lane, ...] = (Lane.CPU, Lane.GPU)
    files: tuple[str, ...] = ()
    """The files with the bug, relative to site-packages. Each rank must have loaded them. Files
    that a defect names need not be repeated."""
    releases: str = ""
    """The releases that it can test, as a requirement such as ``transformers>=5``; empty for all.
    Others may have the bug, unless ``absent`` has them."""
    companions: tuple[Companion, ...] = ()
    launches: tuple[str, ...] = ("",)
    """The names of a trial's launches, each in new processes: for example to save in one and to
    load in the next. Most scenarios have one launch, without a name."""
    harm: str = HARMS[0]
    """What the bug does to a run: one of ``HARMS``."""
    visibility: str = VISIBILITIES[0]
    """How a user can notice it: one of ``VISIBILITIES``."""
    settings: Mapping[str, Condition] = field(default_factory=dict)
    """The conditions for the bug that settings decide, see ``settings``; all must hold."""
    seen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What ``guard`` sees in a run that sets off the bug, beside ``settings``; it decides what the
    code decides. By the full name of a class of which the run has an object, conditions for its
    attributes: ``{"open_clip.loss.ClipLoss": {"local_loss": True}}``. The name of a module, without
    conditions, means that its code runs the step. Of several names, with " or " between them, one
    is enough."""
    seen_in_part: bool = False
    """Whether the bug also needs what nobody sees."""
    triggered: Mapping[str, Condition] = field(default_factory=dict)
    """The conditions for the trigger that the parameters decide; all must hold. Where the records
    decide, the code has a function ``exercised`` instead."""
    vehicles: tuple[str, ...] = ()
    """Pinned packages that only drive the code with the bug: users meet it without them."""
    decided_by: tuple[str, ...] = ()
    """The pinned packages whose releases decide whether the bug is there, if recorded runs show
    that the others do not; empty for all but vehicles."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Pinned packages that users of the subject need not have, each with a release: without them
    the bug is there as with this release."""
    absent: tuple[Absent, ...] = ()
    present: tuple[Present, ...] = ()
    remedy: str = ""
    """A way around the bug, as an order: "train in bf16". Releases without the bug follow from the
    recorded runs, see ``remedies``; it names none."""
    known_upstream: bool = True
    """Whether the package's maintainers know of it. Otherwise the folder has ``report.md``."""
    known_in_part: str = ""
    """What they know, if they know a part of it; ``known_upstream`` is False then, because the rest
    is to be reported. It is read after "in part: "."""
    named_by: tuple[str, ...] = ()
    """The lists of other projects that have this bug, and what they call it, such as ``traincheck:
    pytorch/pytorch#104336``: docs/field.md, whose other bugs are in ``field.toml``."""
    proposal: tuple[Defect, ...] = ()
    """The edits that mend the bug as ``report.md`` proposes, if those of ``fixed`` do not."""
    locks: Path | None = None
    """The folder of its lock files."""

    @cached_property
    def params(self) -> type[Any]:
        """The class of its parameters, without the conditions between them."""
        return params_class(self.knobs)

    @property
    def subject(self) -> str:
        """The package whose bug this is: the first pin, or torch where nothing is pinned."""
        return next(iter(self.pins), "torch")

    @property
    def deciding(self) -> tuple[str, ...]:
        """The packages whose releases are looked up: the subject, and others that matter."""
        return self.decided_by or tuple(name for name in self.pins if name not in self.vehicles)

    def variant(self, name: str) -> Variant:
        """A variant by its name, which may be ``released``."""
        if name != RELEASED:
            return self.variants[name]
        buggy = self.variants[BUGGY]
        return Variant("the release as published", None, params=buggy.params, ranks=buggy.ranks)

    def pins_of(self, variant: str) -> dict[str, str]:
        """The pins of a variant; they override the user's and the scenario's."""
        chosen = self.variant(variant)
        return {**({self.subject: chosen.release} if chosen.release else {}), **chosen.pins}

    def release_of(self, variant: str) -> str:
        """The release of the subject on which a variant runs, unless the user pins another."""
        return self.pins_of(variant).get(self.subject, self.pins[self.subject])

    def about(self, variant: str) -> str:
        """A description of a variant."""
        described = self.variant(variant).about
        return described or f"{self.subject} {self.release_of(variant)} as published"

    def ranks_of(self, variant: str) -> int:
        """The number of ranks of a variant."""
        return self.variant(variant).ranks or self.ranks

    @property
    def defects(self) -> tuple[Defect, ...]:
        """The defects of all variants, each once."""
        by_name = {d.name: d for v in self.variants.values() for d in v.defects}
        return tuple(by_name.values())

    @property
    def watched(self) -> tuple[str, ...]:
        """The files with the bug, sorted: ``files``, and those that defects edit."""
        return tuple(sorted({*self.files, *(defect.file for defect in self.defects)}))


@dataclass(frozen=True)
class Finding:
    """A symptom that ``detect`` found."""

    message: str
    """One or two sentences with figures."""
    step: int | None = None
    """The first step at which it shows, counted from 1; 0 means before the first."""
    parameters: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    magnitude: float | None = None
    """Its size, in ``unit``."""
    unit: str = ""
    """The unit of the magnitude; it is read after the number: ``of the right gradient``."""
    clock: str = "step"
    """The unit of ``step``: ``step``, ``epoch`` or ``row``."""
    documented: bool = True
    """Whether it is the documented symptom. Otherwise the trial is inconclusive."""
    another: str = ""
    """If it is the symptom of another bug of the catalogue, and the documented one is not there:
    that bug's name. The release is then not affected by this one."""


@dataclass(frozen=True)
class Exercise:
    """Whether the trigger occurred, and how, or why not. It says nothing about the symptom.

    ``&`` joins two conditions; its text is the text of the first one that is not met.
    """

    met: bool
    text: str

    @staticmethod
    def of(met: bool, how: str, why_not: str | None = None) -> Exercise:
        """An Exercise with the text ``how``; with ``why_not``, if given, unless it is met."""
        return Exercise(met, how if met or why_not is None else why_not)

    @staticmethod
    def needs(met: bool, why_not: str) -> Exercise:
        """A condition that says nothing if it is met, and ``why_not`` otherwise."""
        return Exercise(met, "" if met else why_not)

    def __bool__(self) -> bool:
        return self.met

    def __and__(self, other: Exercise) -> Exercise:
        if not (self.met and other.met):
            return self if not self.met else other
        return Exercise(True, "; ".join(filter(None, (self.text, other.text))))


def exercised(conditions: Mapping[str, Condition], records: Records) -> Exercise:
    """Whether the parameters of a trial, and its number of ranks, meet all conditions."""
    known = {RANKS: len(records.ranks), **vars(records.params)}
    answer = trigger(conditions, {name: Setting(known[name]) for name in conditions})
    return Exercise(bool(answer.met), answer.why)


Record = dict[str, Any]
"""One line that a rank wrote: ``kind``, ``rank``, ``step`` and the facts of its kind."""


@dataclass(frozen=True)
class Records:
    """The records of one trial, by rank and in the order in which they were written."""

    by_rank: Mapping[int, Sequence[Record]]
    params: Any = None
    """The scenario's ``Params`` of this trial, with the changes of its variant."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.by_rank))

    def of(self, kind: str, rank: int | None = None) -> list[Record]:
        """The records of one kind, from one rank or from all, ordered by rank and time."""
        ranks = self.ranks if rank is None else (rank,)
        return [r for n in ranks for r in self.by_rank.get(n, ()) if r["kind"] == kind]

    def typed(self, fields: type[F], kind: str = "step", rank: int | None = None) -> list[F]:
        """The records of one kind, as ``of`` returns them, as objects of a class of facts."""
        return [fields.of(record) for record in self.of(kind, rank)]

    def one(self, kind: str, rank: int = 0) -> Record | None:
        """The only record of a kind on a rank, or None. Raises Inconclusive if there are
        several."""
        records = self.of(kind, rank)
        if len(records) > 1:
            raise Inconclusive(f"rank {rank} wrote {len(records)} records of kind '{kind}'")
        return records[0] if records else None


Trials = Mapping[str, Records]
"""The records of the trials of a run, by variant, in the scenario's order."""


Check = Callable[[Records], dict[str, bool]]
"""A check of a user that misses a bug. It returns what is checked, in words, and whether it gives
an alarm."""


def together(*checks: Check) -> Check:
    """All of these checks in one."""

    def all_of(records: Records) -> dict[str, bool]:
        return {name: fired for check in checks for name, fired in check(records).items()}

    return all_of


@dataclass
class Position:
    """The position of a rank in a run: everything that decides which records it writes."""

    params: Any
    """The scenario's ``Params``, with the changes of the variant."""
    seed: int
    """The seed of Python's and torch's generators, the same on every rank."""
    rank: int
    world_size: int
    lane: Lane
    pins: Mapping[str, str]
    """The upstream releases of this trial."""
    launch: str
    """The name of this launch; empty if the scenario has only one."""


@dataclass
class Context(Position):
    """What a scenario's ``run`` gets: its position, a folder, and ``record``."""

    folder: Path
    """The trial's folder, shared by its ranks and launches, for checkpoints."""
    record: Callable[..., None]
    """``record(kind, step=None, **facts)`` writes one record that ``plan`` declares."""
    device: Any = None
    """The ``torch.device`` of this rank."""
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the wall seconds of a part of the run, for its result."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed


@dataclass(frozen=True)
class Point:
    """One shim: a declared change of the environment that lets an upstream release run here.

    ``install`` gets a function that it calls at each use, so that uses are counted. A shim never
    touches the path of a defect.
    """

    name: str
    """That of the package, a dot, and its own."""
    releases: str
    """The releases that need it, as a version specifier: ``<0.8``."""
    lanes: tuple[Lane, ...]
    why: str
    install: Callable[[Callable[[], None]], None]

    @property
    def upstream(self) -> str:
        return self.name.rpartition(".")[0]
