"""Environment markers: where a requirement holds."""

from __future__ import annotations

from packaging.markers import Marker

from harness.system.text import short


def holds(marker: Marker | str) -> bool:
    """Whether a marker holds for this Python and this platform.

    Raises ValueError for what is no marker, and for one that compares nothing: ``'a' == 'b'``.
    """
    try:
        return (Marker(marker) if isinstance(marker, str) else marker).evaluate()
    except (ValueError, LookupError, RecursionError):  # packaging's exceptions: one is a KeyError
        raise ValueError(f"'{short(str(marker))}' is no marker") from None
