"""Ranks that a launcher started train together: otherwise each one trains a model of its own."""

from __future__ import annotations

import os
import sys

import torch.distributed as dist

from .posts import LocalAlarm

OTHERS = ("horovod", "mpi4py", "ray", "jax", "bagua", "byteps", "hivemind")
"""Packages by which ranks may train together without torch's process groups."""


class ProcessGroups:
    """Whether this process has had a process group since it began to train."""

    def __init__(self) -> None:
        self._has_stepped = False
        self._is_joined = False
        self._was_told = False

    def step_ended(self) -> None:
        """Look whether there is one now."""
        self._has_stepped = True
        self._is_joined = self._is_joined or (dist.is_available() and dist.is_initialized())

    def alarm(self) -> LocalAlarm | None:
        """The alarm of a rank that trains alone, once."""
        ranks = int(os.environ.get("WORLD_SIZE") or 1)
        if (
            ranks == 1
            or not self._has_stepped  # nothing is known if guard failed before
            or self._is_joined
            or self._was_told
            or not sys.modules.keys().isdisjoint(OTHERS)
        ):
            return None
        self._was_told = True
        text = (
            f"the launcher started {ranks} ranks, and each of them trains alone: there is no "
            "process group (init_process_group), so nothing averages their gradients"
        )
        return LocalAlarm("gradients", "alone", text, float(ranks))
