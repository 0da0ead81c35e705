"""JSON, YAML and TOML that users or strangers wrote, read within limits of size and depth.

A text beyond them, or with a number that is none (NaN), raises ValueError like one that is not
valid: a reader needs one ``except``. Our own records are read by ``files.read_json``.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any, NoReturn

LARGEST = 20_000_000
"""Characters; the largest lock files have a few million."""
DEEPEST = 50
"""How deeply lists and tables may be inside each other."""
ALIASES = 20
"""How many aliases a YAML text may have: with many, a short text describes billions of values."""
DIGITS = 300
"""Digits of a whole number, which more than cover a float."""


def json_of(text: str) -> Any:
    """The content of a JSON text."""
    _refuse_large(text)
    return _shallow(
        lambda: json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole
        )
    )


def yaml_of(text: str) -> Any:
    """The content of a YAML text."""
    import yaml  # takes a tenth of a second

    _refuse_large(text)
    depth = aliases = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            aliases += isinstance(event, yaml.AliasEvent)
            if depth > DEEPEST:
                _refuse_deep()
            if aliases > ALIASES:
                raise ValueError(f"it has more than {ALIASES} aliases")
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    _refuse_nonsense(content)
    return content


def toml_of(text: str) -> dict[str, Any]:
    """The content of a TOML text."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    _refuse_large(text)
    content: dict[str, Any] = _shallow(lambda: tomllib.loads(text))
    return content


def _shallow(read: Any) -> Any:
    try:
        content = read()
    except RecursionError:
        _refuse_deep()
    _refuse_nonsense(content)
    return content


def _refuse_nonsense(content: Any, depth: int = 0) -> None:
    """Refuse what is nested too deeply, and floats that are no numbers."""
    if depth > DEEPEST:
        _refuse_deep()
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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it contains {name}, which is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        _refuse_constant(text)
    return number


def _whole(text: str) -> int:
    if len(text) > DIGITS:
        raise ValueError(f"it contains a number with more than {DIGITS} digits")
    return int(text)
