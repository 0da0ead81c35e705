"""What two trials of a scenario must have in common, for its verdict to mean anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.facts.numbers import near
from harness.spec import FIXED, Records

REFERENCE = "reference"

Losses = Callable[[Records], Sequence[float]]


def rank_0(records: Records) -> list[float]:
    """The losses of all steps, as rank 0 recorded them."""
    return [step["loss"] for step in records.of("step", 0)]


def losses(
    trials: Mapping[str, Records], tolerance: float, one: str, of_fixed: Losses = rank_0
) -> Iterator[str]:
    """Fixed must train as the variant ``reference`` does, which is ``one`` rank, say.

    ``tolerance`` is in nats. Yields what disagrees; nothing where not both were run.
    """
    if not {FIXED, REFERENCE} <= set(trials):
        return
    ours, theirs = of_fixed(trials[FIXED]), rank_0(trials[REFERENCE])
    if len(ours) != len(theirs):
        yield f"fixed took {len(ours)} steps, and {one} {len(theirs)}"
    for step, (mine, its) in enumerate(zip(ours, theirs, strict=False), 1):
        if not near(mine, its, within=tolerance):
            yield f"fixed: loss {mine:.6f} at step {step}, where {one} has {its:.6f}"
