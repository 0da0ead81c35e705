"""What a probe of a script has found."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.rank.probe.own_files import Written
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Place
from harness.training.probe.runner import ScriptFacts


@dataclass
class Answers(ScriptFacts):
    """What a probe of a script has found."""

    about: str
    """The reference, in a line."""
    layouts: list[Compared] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_tested: list[str] = field(default_factory=list)
    unanswered: dict[str, str] = field(default_factory=dict)
    """By layout that nobody asked for, why it gave no answer."""
    impossible: frozenset[str] = frozenset()
    """The known bugs that no run could set off."""
    other: Answers | None = None
    """In the other environment: the releases, the known bugs, and the notes on the run that is as
    the reference is in the first."""
    same_rows: bool = False
    """Whether the ranks of a layout have the same rows, as stages or parts of a model have."""
    unseen: bool = False
    """Whether the rows that the model is given were not seen, and must be."""
    decided: float = 1.0
    """The share of the values whose updates were compared at the last step."""
    script: str = "the script"
    """The name of its file."""
    reference: str = "1 rank"
    """The name of the layout that the others are compared with."""
    written: Written = field(default_factory=Written)
    """What the runs wrote into the user's folders, or would have."""
    where: Place | None = None
    """Where the first BROKEN layout parts from the reference, if that is asked."""
