"""A scenario's parameters: each with its bounds, unit and meaning, in one place.

    @dataclass
    class Params(Knobs):
        lr: float = knob(0.1, above=0, about="of SGD")
        samples: int = knob(64, least=8, multiple=8, unit="samples", about="in the dataset")
        seeding: str = knob("common", choices=("common", "own"), about="of the ranks")

The check of a value, its error message and the output of ``show`` and ``--help`` come from this.
Standard library only: ranks import this module.
"""

from __future__ import annotations

import sys
from dataclasses import Field, field, fields
from typing import Any


class Knobs:
    """The base class of every ``Params``. Its values are checked when it is created.

    A subclass may add a ``__post_init__`` for conditions between parameters; it calls
    ``super()``'s."""

    def __post_init__(self) -> None:
        """Raise ValueError for the first value out of bounds; one line that names the bounds."""
        for parameter in knobs(self):
            refuse_unless_within(parameter, getattr(self, parameter.name))


def knob(
    default: Any,
    *,
    about: str,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
    multiple: int | None = None,
    choices: tuple[Any, ...] = (),
    unit: str = "",
) -> Any:
    """A parameter with its default. Numbers must always be finite.

    ``above`` and ``below`` exclude the bound, ``least`` and ``most`` include it. A whole number
    must be a multiple of ``multiple``. ``about`` describes the parameter; it is read after the
    name."""
    bounds = {
        "above": above,
        "least": least,
        "below": below,
        "most": most,
        "multiple": multiple,
        "choices": choices,
        "unit": unit,
        "about": about,
    }
    return field(default=default, metadata=bounds)


def knobs(params: Any) -> tuple[Field[Any], ...]:
    """The parameters of a ``Params`` or of its class, in their order."""
    return fields(params)


def refuse_unless_within(parameter: Field[Any], value: Any) -> None:
    """Raise ValueError, naming the bounds, for a value out of bounds."""
    if not _within(parameter.metadata, value):
        raise ValueError(f"scenario.{parameter.name}={value}: {_must(parameter)}")


def _within(bounds: Any, value: Any) -> bool:
    if bounds.get("choices"):
        return value in bounds["choices"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True  # config checks the types
    finite = abs(value) <= sys.float_info.max  # isfinite raises for huge whole numbers
    return finite and all(
        holds(value, bounds[name]) for name, holds in HOLDS.items() if bounds.get(name) is not None
    )


HOLDS = {
    "above": lambda value, bound: value > bound,
    "least": lambda value, bound: value >= bound,
    "below": lambda value, bound: value < bound,
    "most": lambda value, bound: value <= bound,
    "multiple": lambda value, bound: value % bound == 0,
}
WORDS = {
    "above": "above {}",
    "least": "at least {}",
    "below": "below {}",
    "most": "at most {}",
    "multiple": "a multiple of {}",
}


def _must(parameter: Field[Any]) -> str:
    if parameter.metadata.get("choices"):
        return f"choose {' or '.join(map(str, parameter.metadata['choices']))}"
    finite = ["finite"] if isinstance(parameter.default, float) else []
    *others, ending = [*_bounds(parameter), *finite]
    return f"must be {', '.join(others)} and {ending}" if others else f"must be {ending}"


def _bounds(parameter: Field[Any]) -> list[str]:
    pairs = ((word, parameter.metadata.get(name)) for name, word in WORDS.items())
    return [word.format(f"{bound:g}") for word, bound in pairs if bound is not None]


def meaning(parameter: Field[Any]) -> str:
    """A parameter on one line: ``of SGD; above 0`` or ``of the ranks; one of common, own``."""
    listing = ", ".join(map(str, parameter.metadata.get("choices", ())))
    choices = [f"one of {listing}"] if listing else []
    unit = parameter.metadata.get("unit", "")
    parts = [
        parameter.metadata.get("about", ""),
        f"in {unit}" if unit else "",
        *choices,
        *_bounds(parameter),
    ]
    return "; ".join(filter(None, parts))
