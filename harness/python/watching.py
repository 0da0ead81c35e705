"""Starts guard for callbacks, and tells it of a run that it cannot find."""

from __future__ import annotations

import sys
from typing import Any

INJECTED = "distributed_bugs_guard.rank.guard"
"""The module of guard if the command has brought it."""


def start(**options: Any) -> None:
    """Watch what this process trains, as ``distributed_bugs.guard`` does."""
    import distributed_bugs

    distributed_bugs.guard(**options)


def log_to_mlflow(client: Any, run_id: str) -> None:
    """Send alarms to a run of MLflow that is not the active one of this thread."""
    modules = (sys.modules.get(name) for name in (INJECTED, _beside()))
    for module in filter(None, modules):
        module.log_to_mlflow(client, run_id)
        return


def _beside() -> str:
    """The name of guard's module if no command has brought it."""
    return f"{__name__.rpartition('.python.')[0]}.rank.guard"
