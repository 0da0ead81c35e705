"""What two trials of a scenario must have in common; otherwise its verdict means nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.bugs import api

REFERENCE = "reference"

Losses = Callable[[api.Records], Sequence[float]]


def rank_0(records: api.Records) -> list[float]:
    """The losses of all steps, as rank 0 recorded them."""
    return [step["loss"] for step in records.of("step", 0)]


def losses(
    trials: Mapping[str, api.Records], tolerance: float, noun: str, of_fixed: Losses = rank_0
) -> Iterator[str]:
    """``fixed`` must have the losses of the variant ``reference``, within ``tolerance`` nats.

    ``noun`` names the reference in messages: "one rank". Yields each disagreement, and nothing if
    one of the two was not run.
    """
    if not {api.FIXED, REFERENCE} <= set(trials):
        return
    ours, theirs = of_fixed(trials[api.FIXED]), rank_0(trials[REFERENCE])
    if len(ours) != len(theirs):
        yield f"fixed has {len(ours)} losses, and {noun} has {len(theirs)}"
    for step, (mine, its) in enumerate(zip(ours, theirs, strict=False), 1):
        if not api.near(mine, its, within=tolerance):
            yield f"fixed: loss {mine:.6f} at step {step}, where {noun} has {its:.6f}"
