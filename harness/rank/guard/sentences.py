"""What is said of a run, by rank 0 and again of its report. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def known_bug(bug: Mapping[str, Any]) -> str:
    """A bug that a run sets off, in one line."""
    because = f", because {bug['because']}" if bug.get("because") else ""
    return f"KNOWN BUG {bug['name']}: {bug['title']}{because}; {bug['remedy']}"
