"""Which parameters a check looks at: it costs by their number, so a large model takes turns."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

MOST = 32
"""Parameters that a check looks at."""


def turns(count: int) -> int:
    """After how many checks each of so many parameters was looked at: a power of two, so that
    the parameters of one rank's turn are among those of another rank that has fewer turns."""
    number = 1
    while count > MOST * number:
        number *= 2
    return number


def chosen(names: Sequence[str], check: int) -> list[int]:
    """The numbers of the parameters that a check looks at; all in the first one.

    Ranks agree about it without a message, by the names: those of a pipeline have other numbers.
    """
    number = turns(len(names))
    part = [
        place
        for place, name in enumerate(names)
        if check == 1 or zlib.crc32(name.encode()) % number == check % number
    ]
    return part or list(range(len(names)))
