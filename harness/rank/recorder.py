"""Writes the records of a rank: the scenario's, and those that the harness adds."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from harness.bugs.api.plan import BrokenPlan, Checklist, Kind, Plan
from harness.bugs.api.shapes import (
    COUNT,
    FLAG,
    LINE,
    NUMBER,
    TEXT,
    alike,
    by_name,
    held,
    many,
    matching,
    maybe,
    optional,
)
from harness.bugs.api.spec import Record
from harness.rank import apex
from harness.rank.exits import IDENTITY, Identity
from harness.rank.run_folder import BEGIN, END, part_file, records_file

_VERSION = alike(matching(r"\d+(\.\d+)+\S*", "version"))
ON_GPU = {"gpu": LINE, "nccl": _VERSION, "cuda": _VERSION, "shares_gpu": FLAG}
"""The facts of ``start`` that only the gpu lane has."""
HARNESS_KINDS: Mapping[str, Kind] = {
    BEGIN: Kind({**IDENTITY, "pid": COUNT, "host": LINE}),
    "start": Kind(
        {
            "python": _VERSION,
            "torch": _VERSION,
            "threads": alike(COUNT),
            **{name: optional(shape) for name, shape in ON_GPU.items()},
        }
    ),
    "upstream": Kind(
        {
            "modules": by_name(held({"version": TEXT, "file": TEXT})),
            "files": by_name(maybe(held({"path": TEXT, "sha256": TEXT}))),
            "loaded": COUNT,
            "changed": many(LINE),
            "apex": alike(matching(apex.STATES, "state of apex")),
        }
    ),
    "shims": Kind({"uses": by_name(COUNT)}),
    "phases": Kind({"seconds": by_name(NUMBER), "ended": NUMBER}),
    END: Kind({}),
}
"""What every rank records besides its scenario's plan."""


def complete_plan(plan: Plan) -> Plan:
    """All records that a rank writes: its scenario's plan, and the harness's own records."""
    clashes = set(plan) & set(HARNESS_KINDS)
    if clashes:
        raise BrokenPlan(f"'{clashes.pop()}' is a record of the harness: choose another name")
    return {**HARNESS_KINDS, **plan}


class Recorder:
    """Writes the records of one rank. The file gets its final name once all of them are written."""

    def __init__(self, folder: Path, rank: int, identity: Identity, plan: Plan) -> None:
        self.rank = rank
        self.final = records_file(folder, rank)
        self.part = part_file(folder, rank)
        self._checklist = Checklist(complete_plan(plan))
        self._file: TextIO = self.part.open("w", encoding="utf-8")
        self.record(BEGIN, **asdict(identity), pid=os.getpid(), host=socket.gethostname())

    def record(self, kind: str, step: int | None = None, **facts: Any) -> None:
        """Append one record. ``step`` counts from 1; None means outside the training steps.

        Raises BrokenPlan if the record is not the next planned one of its kind, or if a fact has
        another shape: a loss that is NaN, for example, unless the plan allows it.
        """
        text = json.dumps({"kind": kind, "rank": self.rank, "step": step, **facts})
        record: Record = json.loads(text)  # as a reader sees it: tuples are lists, keys are text
        self._checklist.check(record)
        self._file.write(json.dumps(record, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Write the last record and give the file its final name.

        Raises BrokenPlan, and leaves the file unfinished, if a planned record is missing.
        """
        self.record(END)
        self._checklist.close()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self.part, self.final)
