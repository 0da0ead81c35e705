"""JSON, YAML and TOML that users or strangers wrote, read within limits of size and depth.

A text that exceeds them or contains NaN raises ValueError, like an invalid one: a reader needs one
``except``. A value of the wrong type raises it too, and the message names its place.
``files.read_json`` reads the files of a run folder so, too: a user names the folder.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

LARGEST = 20_000_000
"""Characters; the largest lock files have a few million."""
DEEPEST = 50
"""How deeply lists and tables may be inside each other."""
EXPANDED = 1_000_000
"""How many more values a YAML text may describe than it has characters: with aliases, a short text
describes billions."""
DIGITS = 300
"""Digits of a whole number, which more than cover a float."""
BITS = math.ceil(DIGITS * math.log2(10))
TOML_TEXT = re.compile(
    r'''"""(?:[^\\]|\\.)*?(?:"""|\Z)|"(?:[^"\\\n]|\\[^\n])*"?|#[^\n]*'''
    r"""|'''.*?(?:'''|\Z)|'[^'\n]*'?""",
    re.DOTALL,
)
"""A string or a comment in TOML, also one without an end: so no character is looked at twice."""
DEEP_KEY = re.compile(rf"(?<![\w-])(?:[\w-]+[ \t]*\.[ \t]*){{{DEEPEST}}}")
"""The beginning of a key in TOML with too many parts, ``a.b.c``, where ``_`` is for each string."""
LONG_NUMBER = re.compile(rf"[-+]?[\d_:.]{{{DIGITS + 1},}}")
"""A number in YAML with too many digits; in base 60, it has colons, and takes minutes."""


def json_of(text: str) -> Any:
    """The content of a JSON text."""
    _refuse_large(text)
    return _shallow(lambda: json.loads(text, parse_constant=_refuse_constant, parse_float=_finite))


def yaml_of(text: str) -> Any:
    """The content of a YAML text."""
    import yaml  # takes a tenth of a second

    _refuse_large(text)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast, where it is
    try:
        _refuse_expanding(yaml.parse(text, Loader=loader), len(text) + EXPANDED)
        return _shallow(lambda: yaml.load(text, Loader=loader))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError) as error:  # of "!!bool x"
        raise ValueError(f"a value does not fit its tag ({type(error).__name__})") from None


def _refuse_expanding(events: Iterable[Any], most: int) -> None:
    """Refuse YAML that is nested too deeply, whose aliases describe too many values, or that has a
    number with too many digits."""
    sizes, total = dict[str, int](), 0
    containers: list[tuple[str, int]] = []
    """The anchor of each container that is open, and how many values came before it."""
    for event in events:
        kind = type(event).__name__
        if kind in ("SequenceEndEvent", "MappingEndEvent"):
            anchor, before = containers.pop()
            sizes[anchor] = total - before
            continue
        if kind in ("SequenceStartEvent", "MappingStartEvent"):
            containers.append((event.anchor, total))
        total += sizes.get(event.anchor, 1) if kind == "AliasEvent" else 1
        if len(containers) > DEEPEST:
            _refuse_deep()
        if kind == "ScalarEvent" and LONG_NUMBER.fullmatch(event.value):
            _refuse_digits()
        if total > most:
            raise ValueError("its aliases describe too many values")


def toml_of(text: str) -> dict[str, Any]:
    """The content of a TOML text."""
    import tomli

    _refuse_large(text)
    if DEEP_KEY.search(TOML_TEXT.sub("_", text)):  # it would take hours
        _refuse_deep()
    content: dict[str, Any] = _shallow(lambda: tomli.loads(text))
    return content


def as_table(value: Any, where: str) -> Mapping[str, Any]:
    """A table, with the name of its place in the document; None is an empty one."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong_type(value, where, "a table")
    for key in value:
        if not isinstance(key, str):
            raise ValueError(f"{where} has the name {key!r}, which is {_kind(key)}, not text")
    return value


def as_list(value: Any, where: str) -> list[Any]:
    """A list; None is an empty one."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise _wrong_type(value, where, "a list")
    return value


def as_text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise _wrong_type(value, where, "text")
    return value


def text_at(table: Mapping[str, Any], key: str, where: str = "") -> str:
    """The text of a key; empty if it is missing."""
    return as_text(table[key], where or key) if key in table else ""


def as_texts(value: Any, where: str) -> list[str]:
    """A list of texts; None is an empty one."""
    return [as_text(entry, f"an entry of {where}") for entry in as_list(value, where)]


def table_at(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The table inside tables, ``tool``, ``uv``, ``sources``; empty if one of them is missing."""
    table = document
    for number, key in enumerate(keys, start=1):
        table = as_table(table.get(key), ".".join(keys[:number]))
    return table


def _wrong_type(value: Any, where: str, expected: str) -> ValueError:
    return ValueError(f"{where} is {_kind(value)}, not {expected}")


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    kinds: dict[type, str] = {str: "text", list: "a list", Mapping: "a table"}
    kinds |= {bool: "true or false", int: "a number", float: "a number"}  # a bool is an int, too
    return next((kind for cls, kind in kinds.items() if isinstance(value, cls)), "a date or a time")


def _shallow(read: Any) -> Any:
    try:
        content = read()
    except RecursionError:
        _refuse_deep()
    except ValueError as error:
        if "set_int_max_str_digits" in str(error):  # Python's advice is for programmers
            _refuse_digits()
        raise
    _refuse_nonsense(content)
    return content


def _refuse_nonsense(content: Any, depth: int = 0) -> None:
    """Refuse content that is nested too deeply, and numbers that are not finite or too long."""
    if depth > DEEPEST:
        _refuse_deep()
    if isinstance(content, int) and content.bit_length() > BITS:  # as 0xff, it may be of any size
        _refuse_digits()
    if isinstance(content, float) and not math.isfinite(content):
        _refuse_constant(str(content))
    inside = content.values() if isinstance(content, dict) else content
    for value in inside if isinstance(content, (dict, list)) else ():
        _refuse_nonsense(value, depth + 1)


def _refuse_large(text: str) -> None:
    if len(text) > LARGEST:
        raise ValueError(f"it has more than {LARGEST} characters")


def _refuse_deep() -> NoReturn:
    raise ValueError(f"it is nested more than {DEEPEST} deep")


def _refuse_digits() -> NoReturn:
    raise ValueError(f"it contains a number with more than {DIGITS} digits")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}, which is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse_constant(text)
    return number
