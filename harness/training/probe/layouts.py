"""The layouts that a script is run in, and the further runs that their comparison needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from harness.rank.probe.exchange import Task
from harness.system.errors import UserError
from harness.system.text import count

RANKS, ACCUMULATION, BOTH, RESUME = "ranks", "accumulation", "both", "resume"
RANKS_RESUME = "ranks-resume"
"""Stop and resume on several ranks, compared with these ranks without a stop; only on request."""
SEED = "seed"
"""Another seed on several ranks; needs the arguments that set it."""
AGAINST = "against"
"""A layout in the other environment."""
COMPILE, CHECKPOINTING = "compile", "checkpointing"
"""The script in another mode: compiled or not, with or without recomputation; on request, and where
the script itself compiles or recomputes."""
LAYOUTS = (RANKS, ACCUMULATION, BOTH, RESUME, SEED, RANKS_RESUME, COMPILE, CHECKPOINTING)
USUAL = LAYOUTS[:5]
MODES = LAYOUTS[6:]

SEEDS = (1, 2)
"""The seeds of the perturbed reference runs: their spread is what rounding does."""


SAMPLES = "samples"

RELATIONS = {
    "packing": ("packing",),
    "padding": ("padding_right", "padding_left"),
    "cache": ("generation",),
    "buffers": ("buffers",),
}
"""By the name that users write, relations that the script's model must satisfy: those of
``models``, and one on buffers that is asked here alone."""


@dataclass(frozen=True)
class Settings:
    """What the user chose."""

    rows: int = 12
    """Rows of a step on all ranks; 12 has 2, 3, 4 and 6 as divisors."""
    ranks: int = 2
    k: int = 3
    """Micro-batches of a step. It differs from ``ranks``, so that no two ratios are equal."""
    steps: int = 4
    at: int = 2
    """The step to save at. Two steps follow it: a schedule that is lost shows in the second."""
    save: str | None = None
    """Arguments with which the script saves; empty if it always does, None if it cannot."""
    resume: str | None = None
    same_rows: bool = False
    """Whether all ranks see the same rows, as in tensor parallelism."""
    layouts: tuple[str, ...] = ()
    epoch: bool = False
    """Whether the script goes on to its own end, the end of an epoch, and all rows are counted."""
    other_seed: str = ""
    """Arguments that set another seed."""
    without: tuple[str, ...] = ()
    """What need not be compared: ``samples``."""
    reference_ranks: int = 1
    """Ranks of the reference, for a script that does not run on one."""
    relations: tuple[str, ...] = ()
    """Of RELATIONS; if no layouts are chosen, nothing but these is asked."""
    against: str = ""
    """The other environment in words. The reference runs there, too, and so do the layouts with
    several ranks or micro-batches; if none are chosen, BOTH."""

    bugs: str = ""
    """A file with the bugs of the catalogue and their conditions; empty to suspect any of them."""
    where: bool = False
    """Whether to find out where the first BROKEN layout parts from the reference."""

    @property
    def is_usual(self) -> bool:
        """Whether the user leaves the choice of layouts to probe."""
        return not (self.layouts or self.relations or self.against)

    def __post_init__(self) -> None:
        parts = (1 if self.same_rows else self.ranks) * self.k
        if self.rows % parts:
            raise UserError(f"--rows {self.rows} must be a multiple of {parts} (ranks times k)")
        if not self.at < self.steps:
            raise UserError(f"--at {self.at} must be below --steps {self.steps}")
        if self.ranks % self.reference_ranks:
            raise UserError(
                f"--ranks {self.ranks} must be a multiple of --reference-ranks "
                f"{self.reference_ranks}"
            )
        if self.ranks == self.reference_ranks:
            raise UserError("--ranks must be more than --reference-ranks")
        if unknown := set(self.layouts) - set(LAYOUTS):
            raise UserError(f"no layout {min(unknown)}; there are {', '.join(LAYOUTS)}")
        if unknown := set(self.relations) - set(RELATIONS):
            raise UserError(f"no relation {min(unknown)}; there are {', '.join(RELATIONS)}")
        if unknown := set(self.without) - {SAMPLES}:
            raise UserError(f"--without {min(unknown)}: only {SAMPLES} can be left out")
        resumed = set(self.layouts) & {RESUME, RANKS_RESUME}
        if resumed and None in (self.save, self.resume):
            raise UserError(f"the layout {min(resumed)} needs --save and --resume")
        if SEED in self.layouts and not self.other_seed:
            raise UserError("the layout seed needs --other-seed")
        if (self.save is None) != (self.resume is None):
            raise UserError(
                "--save and --resume are needed together; give '' to the one that your script does "
                "without arguments"
            )


@dataclass(frozen=True)
class Layout(Task):
    """One way to run the script."""

    name: str
    kind: str = ""
    """The layout that the user chooses; empty for the reference and its further runs."""
    world: int = 1
    k: int = 1
    first: int = 0
    """The number of steps that the reference took before its first step."""
    more: str = ""
    """Further arguments of the script."""
    after: str = ""
    """The layout that must have ended before this one starts."""
    shift: Mapping[str, object] = field(default_factory=dict)
    """By name, what is added to the weights before the first step."""
    base: int = 1
    """The ranks of the reference."""
    why: str = ""
    """Why it is run although the user did not ask for it; empty for what always runs."""

    @property
    def resumed(self) -> bool:
        return self.first > 0

    @property
    def rank_factor(self) -> int:
        """The number of ranks, as a multiple of the reference's."""
        return self.world // self.base

    def again(self, how: str, **changes: Any) -> Layout:
        """A further run of this layout, of which only the steps are asked."""
        name = f"{self.name}, {how}"
        return replace(self, name=name, epoch=False, relations=(), **changes)


def reference(settings: Settings) -> Layout:
    """The run that is compared with all others."""
    ranks = settings.reference_ranks
    relations = tuple(name for chosen in settings.relations for name in RELATIONS[chosen])
    return Layout(
        count(ranks, "rank"),
        world=ranks,
        steps=settings.steps,
        epoch=settings.epoch,
        relations=relations,
    )


def rounding(of: Layout) -> list[Layout]:
    """Runs of the same layout in which every value is perturbed by up to an ulp."""
    return [of.again(f"perturbed {seed}", perturb=seed) for seed in SEEDS]


def compared(settings: Settings) -> list[Layout]:
    """The layouts that are compared with the reference."""
    usual = (BOTH,) if settings.against else () if settings.relations else USUAL
    needed = {RESUME: settings.resume is not None, SEED: bool(settings.other_seed)}
    layouts: list[Layout] = []
    for kind in LAYOUTS:
        if kind in (settings.layouts or usual) and kind not in MODES and needed.get(kind, True):
            layouts += _of_kind(settings, kind)
    if settings.against:
        undivided = replace(reference(settings), relations=(), base=settings.reference_ranks)
        divided = [layout for layout in layouts if layout.kind in (RANKS, ACCUMULATION, BOTH)]
        for layout in [undivided, *divided]:
            name = f"{layout.name}, {settings.against}"
            layouts.append(replace(layout, name=name, kind=AGAINST))
    return layouts


def without_a_stop(settings: Settings) -> Layout:
    """The layout that RANKS_RESUME and SEED are compared with."""
    base = settings.reference_ranks
    return Layout(f"{settings.ranks} ranks", world=settings.ranks, base=base, steps=settings.steps)


def _of_kind(settings: Settings, kind: str) -> Iterator[Layout]:
    """A layout of a kind, after the run that it goes on from, if there is one."""
    base, steps = settings.reference_ranks, settings.steps
    world = base if kind in (ACCUMULATION, RESUME) else settings.ranks
    ranks = f"{world} ranks" if world > base else ""
    layout = Layout("", kind, world, base=base, steps=steps, epoch=settings.epoch)
    if kind == SEED:
        name = f"another seed on {ranks}"
        yield replace(layout, name=name, steps=1, more=settings.other_seed, epoch=False)
    elif kind in (RESUME, RANKS_RESUME):
        on, save = f" on {ranks}" if ranks else "", settings.save or ""
        saving = Layout(f"saving{on}", world=world, base=base, steps=settings.at, more=save)
        yield replace(saving, saves=True)
        yield replace(
            layout,
            name=f"stop and resume{on}",
            steps=steps - settings.at,
            first=settings.at,
            more=settings.resume or "",
            after=saving.name,
        )
    else:
        k = 1 if kind == RANKS else settings.k
        name = " x ".join(filter(None, (ranks, f"{k} micro-batches" if k > 1 else "")))
        yield replace(layout, name=name, k=k)
