"""Knobs: a scenario's parameters, each with its bounds, its unit and its meaning where it stands.

    @dataclass
    class Params(Knobs):
        lr: float = knob(0.1, above=0, about="of SGD")
        samples: int = knob(64, least=8, multiple=8, unit="samples", about="in the dataset")
        seeding: str = knob("apart", choices=("apart", "alike"), about="of the ranks")

The check of a value, its message and what ``show`` and ``--help`` print all come from that.
Standard library only: ranks import this, with an old upstream's dependencies before ours.
"""

from __future__ import annotations

import sys
from dataclasses import Field, field, fields
from typing import Any


class Knobs:
    """What every ``Params`` inherits: its values are checked when it is made.

    A ``__post_init__`` of its own is for what concerns two knobs at once; it calls ``super()``'s.
    """

    def __post_init__(self) -> None:
        """Raise ValueError, on one line that names the bounds, for the first value beyond them."""
        for each in knobs(self):
            refuse_unless_within(each, getattr(self, each.name))


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
    """A parameter with a default; numbers must be finite whatever the other bounds are.

    ``above`` and ``below`` exclude the bound, ``least`` and ``most`` include it; ``multiple`` is of
    which a whole number must be one; ``about`` says what it is, to be read after its name.
    """
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
    """The knobs of a ``Params``, or of its class, in their order."""
    return fields(params)


def refuse_unless_within(each: Field[Any], value: Any) -> None:
    """Raise ValueError, naming the bounds, where a value is not within them."""
    if not _within(each.metadata, value):
        raise ValueError(f"scenario.{each.name}={value}: {_must(each)}")


def _within(bounds: Any, value: Any) -> bool:
    if bounds.get("choices"):
        return value in bounds["choices"]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return True  # its type is the config's to check
    finite = abs(value) <= sys.float_info.max  # isfinite raises for a whole number beyond it
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


def _must(each: Field[Any]) -> str:
    if each.metadata.get("choices"):
        return f"choose {' or '.join(map(str, each.metadata['choices']))}"
    finite = ["finite"] if isinstance(each.default, float) else []
    return f"must be {', '.join([*_bounds(each), *finite])}"


def _bounds(each: Field[Any]) -> list[str]:
    given = ((word, each.metadata.get(name)) for name, word in WORDS.items())
    return [word.format(f"{bound:g}") for word, bound in given if bound is not None]


def meaning(each: Field[Any]) -> str:
    """What a knob is, on one line: ``of SGD; above 0`` or ``of the ranks; apart or alike``."""
    choices = [" or ".join(map(str, each.metadata.get("choices", ())))]
    unit = each.metadata.get("unit", "")
    parts = [each.metadata.get("about", ""), f"in {unit}" if unit else "", *choices, *_bounds(each)]
    return "; ".join(filter(None, parts))
