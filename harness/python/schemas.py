"""JSON Schemas of what ``check`` and ``probe`` write, from the types of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from harness.python.results import CheckResult, ProbeResult

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null"}

Json = dict[str, Any]


def check_schema() -> str:
    """The schema of ``check --json``. The exit code is that of the process."""
    return _document("check --json", CheckResult, without=("exit_code",))


def probe_schema() -> str:
    """The schema of ``probe --json``."""
    return _document("probe --json", ProbeResult)


def _document(title: str, kind: Any, without: tuple[str, ...] = ()) -> str:
    types: dict[str, Json] = {}
    content = _object(kind, types, without)
    document = {"$schema": DIALECT, "title": f"distributed-bugs {title}", **content}
    return json.dumps({**document, "$defs": types}, indent=1) + "\n"


def _object(kind: Any, types: dict[str, Json], without: tuple[str, ...] = ()) -> Json:
    """The schema of a dataclass; it has every field, and no other one."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.name not in without]
    properties = {name: schema_of(hints[name], types) for name in names}
    return {
        "type": "object",
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def schema_of(kind: Any, types: dict[str, Json]) -> Json:
    """The schema of a type; ``types`` collects those of dataclasses."""
    origin, arguments = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        name = kind.__name__  # type: ignore[union-attr]
        if name not in types:
            types[name] = {}  # keeps the order, and ends a circle
            types[name] = _object(kind, types)
        return {"$ref": f"#/$defs/{name}"}
    if origin is tuple:
        return {"type": "array", "items": schema_of(arguments[0], types)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": schema_of(arguments[1], types)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(argument, types) for argument in arguments]}
    return {} if kind is Any else {"type": NAMES[kind]}
