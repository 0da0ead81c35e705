"""Six stacks that a team could have had in 2024, 2025 and 2026, and the answers of runs.

``python -m tests.check.stacks`` runs all bugs on each stack (``check --run``) and writes the
answers of runs again; it takes half an hour on 2 cores if it must make the overlays.
"""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).parent
STACKS = sorted(path.stem for path in HERE.glob("*.txt"))


def requirements(stack: str) -> str:
    """The requirements file of a stack."""
    return str(HERE / f"{stack}.txt")


def ran(stack: str) -> dict[str, str]:
    """The answers that runs gave for a stack, by bug; bugs without one are left out."""
    answers: dict[str, str] = json.loads((HERE / f"{stack}.json").read_text())
    return answers
