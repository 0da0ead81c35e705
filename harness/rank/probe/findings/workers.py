"""The workers of a rank's loaders: what guard sees of them in a training, in the few steps of a
probe."""

from __future__ import annotations

from harness.rank import events

WORKERS = "rows of workers"
"""How the notes begin: by these words a recorded note is recognised."""

KINDS = ("unsplit", "workers", "numbers")
"""Guard's alarms that are about workers. Layouts show what else is wrong with rows."""

ROUNDS = 2
"""Batches of each worker that are compared: four steps have two of each of two workers."""


class Workers:
    """Whether workers read the same rows, or draw the same random numbers."""

    def __init__(self) -> None:
        from harness.rank.guard.data.rows import Rows

        self._rows = Rows(ROUNDS)

    def install(self) -> None:
        """Subscribe, before anything of the script runs."""
        rows, on = self._rows, events.instrument.on
        rows.subscribe(lambda handler: handler, is_alive=lambda: True, is_checked=lambda: False)
        on(events.Backward, before=lambda _: rows.backward(), when=_in_rank)

    def report(self) -> list[str]:
        """What is wrong with the workers, in a line for each fault."""
        return [f"{WORKERS}: {alarm.text}" for alarm in self._rows.alarms if alarm.kind in KINDS]


def _in_rank() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is None
