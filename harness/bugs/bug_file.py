"""Reads ``bug.toml``: all that is known of a bug, as data. Its schema is docs/schemas/bug.json.

What is not said has its default, see ``Scenario``. Each parameter and variant is a table of its
own. Ranks import this module, and read no such file.
"""

from __future__ import annotations

import collections.abc
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from harness.bugs.api.knobs import Knob
from harness.bugs.api.settings import CODE, RANKS, SETTINGS
from harness.bugs.api.spec import (
    BUGGY,
    FIXED,
    HARMS,
    UNDECIDED,
    VISIBILITIES,
    Defect,
    Outcome,
    Scenario,
    Variant,
)
from harness.system.conditions import COMPARISONS
from harness.system.errors import unknown
from harness.system.text import StrEnum

FILE = "bug.toml"

T = TypeVar("T")

SEEN_CONDITIONS = ("above", "below", "not", "differs", "exists", "has", "none")
"""What a condition for an attribute may say. ``has`` is a value that an attribute must have, also
if others of its class lack the attribute; ``none`` means None, and ``differs`` names an attribute
that is not equal to this one."""


def read(file: Path, module: str) -> Scenario:
    """The bug of a file. Its edits are functions of ``module`` unless they name another one.

    Raises ValueError, which names the key and the choices.
    """
    content = toml_in(file)
    defects = _defects(content.pop("defects", {}), module)
    knobs = _table(content.pop("params", {}), "[params]")
    content["knobs"] = {k: built(Knob, table, f"[params.{k}]") for k, table in knobs.items()}
    content["variants"] = {
        name: _variant(name, table, defects)
        for name, table in _table(content.get("variants", {}), "variants").items()
    }
    content["proposal"] = _chosen(content.get("proposal", ()), "proposal", defects)
    content["locks"] = file.parent / "locks"
    bug = built(Scenario, content, "the file")
    _check(bug)
    return bug


def _defects(tables: Any, module: str) -> dict[str, Defect]:
    edits = {}
    for name, table in _table(tables, "[defects]").items():
        place = table.get("edit", name)
        place = place if ":" in place else f"{module}:{place}"
        edits[name] = built(Defect, {**table, "edit": place, "name": name}, f"[defects.{name}]")
    return edits


def _chosen(names: Any, where: str, defects: Mapping[str, Defect]) -> tuple[Defect, ...]:
    _refuse_others(f"defect of {where}", names, defects)
    return tuple(defects[name] for name in names)


def _variant(name: str, table: Any, defects: Mapping[str, Defect]) -> Variant:
    where = f"[variants.{name}]"
    content = {
        "about": "",
        "expect": Outcome.SYMPTOM if name == BUGGY else Outcome.CLEAN,
        **table,
        "defects": _chosen(table.get("defects", ()), where, defects),
    }
    return built(Variant, content, where)


def _check(bug: Scenario) -> None:
    """Raise ValueError for a value that does not exist, or that contradicts another one."""
    _refuse_others("harm", {bug.harm} - {UNDECIDED}, HARMS)
    _refuse_others("visibility", {bug.visibility} - {UNDECIDED}, VISIBILITIES)
    _refuse_others("setting", bug.settings, SETTINGS)
    _refuse_others("pin in 'decided_by'", bug.decided_by, bug.pins)
    _refuse_others("pin in 'without'", bug.without, bug.pins)
    for name, knob in bug.knobs.items():
        knob.refuse_unless_within(name, knob.default)
    for name, variant in bug.variants.items():
        _refuse_others(f"pin in [variants.{name}]", variant.pins, bug.pins)
        _refuse_others(f"parameter in [variants.{name}]", variant.params, bug.knobs)
    _refuse_others("parameter in [triggered]", bug.triggered, {*bug.knobs, RANKS})
    for missing in {BUGGY, FIXED} - set(bug.variants):
        raise ValueError(f"[variants.{missing}] is missing")
    decided = {"settings": bug.settings, "triggered": bug.triggered}
    for choices, places in ((COMPARISONS, decided), (SEEN_CONDITIONS, bug.seen)):
        for place, conditions in places.items():
            for name, condition in conditions.items():
                if isinstance(condition, Mapping):
                    _refuse_others(f"condition of {name} in {place}", condition, choices)
                    if choices is COMPARISONS and len(condition) != 1:
                        raise ValueError(f"{name} in {place} has several conditions: give one")
    if not isinstance(bug.settings.get(CODE, ""), str):
        raise ValueError(f"{CODE} in [settings] must be text, which completes 'whether'")
    if bug.known_in_part and bug.known_upstream:
        raise ValueError("known_in_part is for a bug with known_upstream = false")


def toml_in(file: Path) -> dict[str, Any]:
    """The content of a file of TOML."""
    import tomli  # not in a rank

    return tomli.loads(file.read_text(encoding="utf-8"))


def built(kind: type[T], table: Any, where: str) -> T:
    """The object of a class whose fields a table has."""
    table = _table(table, where)
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    _refuse_others(f"key in {where}", table, known)
    for name, field in known.items():
        if name not in table and field.default is field.default_factory is MISSING:
            raise ValueError(f"{where} lacks '{name}'")
    hints = _hints(kind)  # type: ignore[arg-type]
    return kind(**{k: _typed(hints[k], value, f"'{k}' in {where}") for k, value in table.items()})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _typed(hint: Any, value: Any, where: str) -> Any:
    """The value of a field, with lists as tuples. Raises ValueError if it has another type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and isinstance(value, list):
        return tuple(_typed(arguments[0], item, where) for item in value)
    if is_dataclass(hint) and isinstance(hint, type) and not isinstance(value, hint):
        return built(hint, value, where)
    for kind in (hint, *arguments):
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            _refuse_others(f"value of {where}", [value], list(kind))
            return kind(value)
    for kind, word in WORDS.items():
        if kind in (hint, origin) and not isinstance(value, kind):
            raise ValueError(f"{where} must be {word}, not {value!r}")
    return value


WORDS = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    tuple: "a list",
    collections.abc.Mapping: "a table",
}
"""How a type is called in a message."""


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a table, not {value!r}")
    return value


def _refuse_others(what: str, values: Iterable[str], choices: Collection[str]) -> None:
    for value in values:
        if value not in choices:
            raise ValueError(unknown(what, value, choices))
