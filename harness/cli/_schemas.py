"""JSON Schemas of what commands write for programs, from the types of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from harness.python.results import CheckResult, ProbeResult
from harness.run.score.scores import Score
from harness.training.models.table import Table

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}

Json = dict[str, Any]


def check_schema() -> str:
    """The schema of ``check --json``. The exit code is that of the process."""
    return _document("check --json", CheckResult, without=("exit_code",))


def probe_schema() -> str:
    """The schema of ``probe --json``. The HTML report has a file of its own."""
    return _document("probe --json", ProbeResult, without=("html",))


def models_schema() -> str:
    """The schema of ``models --json``."""
    return _document("models --json", Table)


def score_schema() -> str:
    """The schema of ``score --json``."""
    return _document("score --json", Sequence[Score])


def _document(title: str, kind: Any, without: tuple[str, ...] = ()) -> str:
    types: dict[str, Json] = {}
    is_list = get_origin(kind) is Sequence
    content = schema_of(kind, types) if is_list else _object(kind, types, without)
    document = {"$schema": DIALECT, "title": f"distributed-bugs {title}", **content}
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
