"""Which gradient comes if context-parallel ranks share each sequence? Standard library only."""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import applied

PART = 4
"""How many tokens of a sequence each rank has."""

SCRIPT, PART_ALONE, SUMMED, TIMES = "script", "part", "sequence", "sequence times ranks"
"""What a loss function returns: what the script of the release does; the sum over the tokens of its
rank's part, as scripts since 0.13; that over the sequence, as in 0.12; or that one times the number
of ranks that share the sequence, as before 0.12."""


def returned(loss: str, release: str) -> str:
    """What the loss function returns, where upstream's script of the release decides."""
    if loss != SCRIPT:
        return loss
    minor = int(release.split(".")[1])
    return PART_ALONE if minor >= 13 else SUMMED if minor == 12 else TIMES


def times_ranks(step: applied.Step, records: api.Records) -> bool:
    """Each step applied the right gradient, times the number of context-parallel ranks."""
    return step.times(len(records.ranks))


def shared(records: api.Records) -> api.Exercise:
    """Several ranks shared each sequence."""
    ranks = len(records.ranks)
    return api.Exercise.of(ranks > 1, f"{ranks} ranks shared each sequence", "there was one rank")
