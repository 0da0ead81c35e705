"""JSON Schemas of what commands write for programs, from the types of the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from harness.bugs.results import CellJson, VerdictJson
from harness.cli.list import BrokenJson, ListedJson
from harness.publish.report import WatchJson
from harness.python.results import CheckResult, ProbeResult
from harness.run.score.scores import Score
from harness.training.guard.report import GuardAlarmJson, GuardSummaryJson
from harness.training.models.table import Table

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}

Json = dict[str, Any]


def _document(title: str, kind: Any, without: tuple[str, ...] = (), version: int = 0) -> str:
    """The schema of a document. A ``version`` belongs to one that has no field ``schema``."""
    types: dict[str, Json] = {}
    is_list = get_origin(kind) is Sequence
    content = schema_of(kind, types) if is_list else _object(kind, types, without)
    document: Json = {"$schema": DIALECT, "title": f"distributed-bugs {title}"}
    document |= ({"version": version} if version else {}) | content
    return json.dumps({**document, "$defs": types}, indent=1) + "\n"


def _object(kind: Any, types: dict[str, Json], without: tuple[str, ...] = ()) -> Json:
    """The schema of a dataclass, or of a dictionary with fixed keys; it has no other field."""
    hints = get_type_hints(kind)
    keys = [field.name for field in fields(kind)] if is_dataclass(kind) else list(hints)
    names = [name for name in keys if name not in without]
    required = set(names) if is_dataclass(kind) else kind.__required_keys__
    properties = {name: schema_of(hints[name], types) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in names if name in required],
        "additionalProperties": False,
    }


def schema_of(kind: Any, types: dict[str, Json]) -> Json:
    """The schema of a type; ``types`` collects those of dataclasses."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind) or is_typeddict(kind):
        name = kind.__name__
        if name not in types:
            types[name] = {}  # keeps the order, and ends a circle
            types[name] = _object(kind, types)
        return {"$ref": f"#/$defs/{name}"}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema_of(arguments[0], types)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1], types)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(argument, types) for argument in arguments]}
    return {} if kind is Any else {"type": NAMES[kind]}


DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "check": partial(_document, "check --json", CheckResult, without=("exit_code",)),
    "grade": partial(_document, "grade --json", VerdictJson, version=1),
    "guard_alarm": partial(_document, "a line of alarms.jsonl of guard", GuardAlarmJson, version=2),
    "guard_summary": partial(_document, "summary.json of guard", GuardSummaryJson, version=2),
    "list": partial(_document, "list --json", Sequence[ListedJson | BrokenJson], version=1),
    "matrix": partial(_document, "matrix --json", Sequence[CellJson], version=1),
    "models": partial(_document, "models --json", Table),
    "probe": partial(_document, "probe --json", ProbeResult),
    "score": partial(_document, "score --json", Sequence[Score], version=1),
    "watch": partial(_document, "watch --json", WatchJson),
}
"""By the name of its file, what makes a schema. The exit code of ``check`` is that of the process.
"""
