"""The words of the house as types. Standard library only: everything may import this.

A *scenario* is one documented bug, told by one module in ``scenarios/``. A *variant* of it is run
as one *trial* on N ranks. The ranks write *records*; grading turns the records of a trial into an
*outcome*, and the outcomes of a scenario's trials into a *verdict*.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

BUGGY = "buggy"
FIXED = "fixed"
RELEASED = "released"
"""The variant that every scenario has besides its own: the trigger, on a release as published."""

OTHER = "other"
GOES_WRONG = ("gradients", "data", "resume", "precision", "positions", "learning rate", OTHER)
"""What a bug can spoil, for those who look for theirs by what they see."""


class Lane(str, Enum):
    """Where a trial runs, and over which collectives."""

    CPU = "cpu"
    GPU = "gpu"

    @property
    def backend(self) -> str:
        """The name of the ``torch.distributed`` backend of this lane."""
        return "nccl" if self is Lane.GPU else "gloo"

    def __str__(self) -> str:
        return self.value


class Outcome(str, Enum):
    """What one trial showed. A crash is ``inconclusive``: it is never a reproduction."""

    SYMPTOM = "symptom"
    CLEAN = "clean"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"

    def __str__(self) -> str:
        return self.value


class Verdict(str, Enum):
    """What the trials of one scenario say together."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not reproduced"
    INCONCLUSIVE = "inconclusive"
    UNSUPPORTED = "unsupported"
    UNJUDGED = "unjudged"
    """Buggy and fixed were not both run, so there is nothing to compare."""

    def __str__(self) -> str:
        return self.value


class ExitCode:
    """The exit codes of every verb, as README.md documents them."""

    AS_EXPECTED = 0
    NOT_AS_EXPECTED = 1
    USER_MISTAKE = 2
    INCONCLUSIVE = 3
    UNSUPPORTED = 4

    @staticmethod
    def worst(codes: Iterable[int]) -> int:
        """The exit code of several runs: an unexpected result outweighs one that says nothing."""
        badness = (
            ExitCode.AS_EXPECTED,
            ExitCode.UNSUPPORTED,
            ExitCode.INCONCLUSIVE,
            ExitCode.NOT_AS_EXPECTED,
            ExitCode.USER_MISTAKE,
        )
        return max(codes, key=badness.index, default=ExitCode.AS_EXPECTED)


class HarnessError(Exception):
    """Something that ends a command with one clear line and an exit code, without a traceback."""

    exit_code = ExitCode.INCONCLUSIVE


class UserError(HarnessError):
    """The command cannot mean anything; the message names the choices."""

    exit_code = ExitCode.USER_MISTAKE


class Unsupported(HarnessError):
    """This machine cannot run it; the message is the reason."""

    exit_code = ExitCode.UNSUPPORTED


class Inconclusive(HarnessError):
    """The machinery failed before anything could be learned about the bug."""

    exit_code = ExitCode.INCONCLUSIVE


class Fault(Inconclusive):
    """What failed is this machine, its disk or its network, and nothing that was asked about: no
    network, no room, a certificate that was refused."""


Edits = Iterable[tuple[Any, Any]]
"""What the edit of a defect yields: pairs of an old and a new node of a syntax tree."""


@dataclass(frozen=True)
class Defect:
    """An edit of upstream source that puts a bug back.

    ``edit`` gets the syntax tree (``libcst``) of ``scope`` and yields ``(old, new)`` pairs of
    nodes. It must yield exactly one pair: an edit that matches nothing, or twice, stops the run.
    """

    name: str
    upstream: str
    """The distribution that is edited, as on PyPI: ``deepspeed``."""
    file: str
    """The file in it, relative to site-packages."""
    scope: str
    """The qualified name of the class or function that is edited."""
    edit: Callable[[Any], Edits]
    about: str
    """What the edit does, and why that is the bug."""


@dataclass(frozen=True)
class Companion:
    """Pins that go with some releases of another package: ``when`` is like ``deepspeed<0.16``."""

    when: str
    pins: Mapping[str, str]
    why: str


@dataclass(frozen=True)
class Variant:
    """One way to run a scenario, and the outcome that the report leads one to expect.

    A bug that published releases tell is two words: ``affected("0.29.3")``,
    ``unaffected("0.30.0")``.
    """

    about: str
    """What it is; empty for a release as published, which says so itself."""
    expect: Outcome | None
    """None where that is the question: of a release as published."""
    defects: tuple[Defect, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    """What this variant changes in ``Params``, over what the user asked for."""
    pins: Mapping[str, str] = field(default_factory=dict)
    release: str = ""
    """The subject's release, where it is another than the scenario's."""
    ranks: int | None = None
    """The number of ranks, where it differs from the scenario's."""
    triggers: bool = True
    """Whether the trigger must be exercised. A control that switches it off says False."""


def affected(release: str = "", about: str = "", **changes: Any) -> Variant:
    """A published release, or the scenario's own, in which the documented symptom is expected.

    ``changes`` are further fields of the Variant: ``params=``, ``defects=``, ``ranks=``.
    """
    return Variant(about, Outcome.SYMPTOM, release=release, **changes)


def unaffected(release: str = "", about: str = "", **changes: Any) -> Variant:
    """A published release, or the scenario's own, that is expected to be clean; as ``affected``."""
    return Variant(about, Outcome.CLEAN, release=release, **changes)


@dataclass(frozen=True)
class Scenario:
    """One documented bug, with its provenance."""

    report: tuple[str, ...]
    """Where it was reported: links or citations."""
    fix: str
    symptom: str
    """The documented symptom, in the words of the report."""
    trigger: str
    """What a user's run must do to meet the bug, to be read after "only with"."""
    remedy: str
    """What a user who is affected can do, as an order: "train in bf16"."""
    pins: Mapping[str, str]
    """Upstream releases; the first is the subject, whose day decides the dependencies."""
    variants: Mapping[str, Variant]
    ranks: int
    lanes: tuple[Lane, ...] = (Lane.CPU, Lane.GPU)
    files: tuple[str, ...] = ()
    """The files with the bug, relative to site-packages, where no defect names them: each rank must
    have loaded them, with the hash that the overlay has."""
    releases: str = ""
    """The releases that it can ask, as a requirement such as ``transformers>=5``; else all."""
    companions: tuple[Companion, ...] = ()
    launches: tuple[str, ...] = ("",)
    """The launches that a trial is made of, one after another, each in fresh processes: to save in
    one and load in the next. Most scenarios have just one, without a name."""
    goes_wrong: str = OTHER
    """What the bug spoils: one of ``GOES_WRONG``; anything else is a ValueError."""
    title: str = ""
    """The wrong behaviour: the docstring's first sentence. The catalogue fills it in."""
    locks: Path | None = None
    """The folder of its lock files. The catalogue fills it in."""

    def __post_init__(self) -> None:
        if self.goes_wrong not in GOES_WRONG:
            choices = ", ".join(GOES_WRONG)
            raise ValueError(f"goes_wrong is '{self.goes_wrong}', and not one of {choices}")

    @property
    def subject(self) -> str:
        """The package whose bug this is: the first pin."""
        return next(iter(self.pins))

    def variant(self, name: str) -> Variant:
        """A variant by its name, which may be ``released``."""
        if name != RELEASED:
            return self.variants[name]
        buggy = self.variants[BUGGY]
        return Variant("the release as published", None, params=buggy.params, ranks=buggy.ranks)

    def pins_of(self, variant: str) -> dict[str, str]:
        """What a variant itself pins, over the user's choice and the scenario's own pins."""
        told = self.variant(variant)
        return {**({self.subject: told.release} if told.release else {}), **told.pins}

    def about(self, variant: str) -> str:
        """What a variant is, in words."""
        told = self.variant(variant)
        named = {**self.pins, **self.pins_of(variant)}
        return told.about or f"{self.subject} {named[self.subject]} as published"

    def ranks_of(self, variant: str) -> int:
        """How many ranks a variant runs on."""
        return self.variant(variant).ranks or self.ranks

    @property
    def defects(self) -> tuple[Defect, ...]:
        """Every defect that some variant puts in, once, in the order of the variants."""
        found = {d.name: d for v in self.variants.values() for d in v.defects}
        return tuple(found.values())

    @property
    def watched(self) -> tuple[str, ...]:
        """The files with the bug in them, sorted: those named, and those that defects edit."""
        return tuple(sorted({*self.files, *(defect.file for defect in self.defects)}))


@dataclass(frozen=True)
class Finding:
    """A detector's answer: the documented symptom was seen."""

    message: str
    """What was found, in one or two sentences with figures."""
    step: int | None = None
    """The first step (counted from 1) at which it shows; 0: before the first."""
    parameters: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    magnitude: float | None = None
    """How large it is, in ``unit``."""
    unit: str = ""
    """What the magnitude counts, to be read after it: ``of 1, the ratio that is right``."""
    clock: str = "step"
    """What ``step`` counts: steps, or ``epoch``."""
    documented: bool = True
    """Whether this is the report's own symptom. Anything else makes a trial inconclusive."""


@dataclass(frozen=True)
class Exercise:
    """Whether the trigger was exercised: how, or why not. It says nothing of the symptom.

    Two that are both needed are joined by ``&``; the first that is not met answers for both.
    """

    met: bool
    text: str

    @staticmethod
    def of(met: bool, how: str, why_not: str) -> Exercise:
        """``how`` where it was exercised, else ``why_not``: "no norm passed the threshold"."""
        return Exercise(met, how if met else why_not)

    def __bool__(self) -> bool:
        return self.met

    def __and__(self, other: Exercise) -> Exercise:
        if not (self.met and other.met):
            return self if not self.met else other
        return Exercise(True, "; ".join(filter(None, (self.text, other.text))))


Record = dict[str, Any]
"""A fact that a rank wrote down: ``kind``, ``rank``, ``step`` and what the kind says besides."""


@dataclass(frozen=True)
class Records:
    """What the ranks of one trial wrote down, by rank and in order."""

    by_rank: Mapping[int, Sequence[Record]]
    params: Any = None
    """The scenario's ``Params`` of this trial, with what its variant changes already in it."""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.by_rank))

    def of(self, kind: str, rank: int | None = None) -> list[Record]:
        """The records of one kind, of one rank or of all, ordered by rank and then by time."""
        ranks = self.ranks if rank is None else (rank,)
        return [r for n in ranks for r in self.by_rank.get(n, ()) if r["kind"] == kind]

    def one(self, kind: str, rank: int = 0) -> Record | None:
        """The only record of a kind on a rank, or None."""
        found = self.of(kind, rank)
        if len(found) > 1:
            raise Inconclusive(f"rank {rank} wrote {len(found)} records of kind '{kind}'")
        return found[0] if found else None


Trials = Mapping[str, Records]
"""The records of the trials of a run, by variant, in the scenario's order."""


@dataclass
class Position:
    """Where in a run a rank stands: all that decides what it is going to record."""

    params: Any
    """The scenario's ``Params``, with what the variant changes already in it."""
    seed: int
    """Python's and torch's generators have been seeded with it, alike on every rank."""
    rank: int
    world_size: int
    lane: Lane
    pins: Mapping[str, str]
    """The upstream releases of this trial."""
    launch: str
    """Which of the scenario's launches this is; empty where it has none."""


@dataclass
class Context(Position):
    """What a scenario's ``run`` gets: its parameters, its place, and a way to write things down."""

    folder: Path
    """The trial's folder, shared by its ranks and launches: checkpoints go here."""
    record: Callable[..., None]
    """``record(kind, step=None, **facts)`` appends one record that ``plan`` has promised."""
    device: Any = None
    """The ``torch.device`` of this rank."""
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a part of the run, in seconds of wall clock, under a name for the bench."""
        start = time.perf_counter()
        try:
            yield
        finally:
            elapsed = time.perf_counter() - start
            self.seconds[name] = self.seconds.get(name, 0.0) + elapsed


@dataclass(frozen=True)
class TrialResult:
    """What one trial showed, and why that is its outcome."""

    variant: str
    outcome: Outcome
    expected: Outcome | None
    """None where nothing was expected: any answer will do, but it must be one."""
    reason: str
    """The finding, how the trigger was exercised, or what went wrong."""
    seconds: float = 0.0
    finding: Finding | None = None
    failure: Mapping[str, Any] | None = None
    """The rank that failed first, and its message."""
    insufficient_checks: Mapping[str, bool] | None = None
    """Plausible checks that the scenario shows to miss the bug, and whether each fired."""
    shims: Mapping[str, int] | None = None
    """How often each shim was used, over all ranks."""
    environment: Mapping[str, Any] | None = None
    """Versions of Python, torch, CUDA and NCCL, and the GPU, as rank 0 saw them."""
    phases: Mapping[str, float] | None = None
    """Wall seconds of the parts of the slowest rank."""

    @property
    def as_expected(self) -> bool:
        if self.expected is None:
            return self.outcome in (Outcome.SYMPTOM, Outcome.CLEAN)
        return self.outcome is self.expected


@dataclass(frozen=True)
class RunResult:
    """What the trials of one run say together."""

    scenario: str
    verdict: Verdict
    reasons: tuple[str, ...]
    """Why the verdict is not better; empty for ``reproduced``."""
    trials: tuple[TrialResult, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of a command that ends with this result."""
        if self.verdict is Verdict.UNSUPPORTED:
            return ExitCode.UNSUPPORTED
        if self.verdict is Verdict.INCONCLUSIVE:
            return ExitCode.INCONCLUSIVE
        if self.verdict is Verdict.NOT_REPRODUCED or not all(t.as_expected for t in self.trials):
            return ExitCode.NOT_AS_EXPECTED
        return ExitCode.AS_EXPECTED

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"exit_code": self.exit_code}


@dataclass(frozen=True)
class Point:
    """One shim: a declared change of the environment that lets an upstream release run here.

    ``install`` gets a function to call at each use, so that the evidence can count them. A shim
    never touches the path of a defect.
    """

    name: str
    upstream: str
    releases: str
    """The releases that need it, as a version specifier: ``<0.8``."""
    lanes: tuple[Lane, ...]
    why: str
    install: Callable[[Callable[[], None]], None]
