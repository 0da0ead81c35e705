"""A scenario's parameters: each with its bounds, unit and meaning, as ``bug.toml`` has them.

    [params]
    lr = { default = 0.1, above = 0, about = "of SGD" }
    samples = { default = 64, least = 8, multiple = 8, unit = "samples", about = "in the dataset" }
    seeding = { default = "common", choices = ["common", "own"], about = "of the ranks" }

The check of a value, its error message and the output of ``show`` and ``--help`` come from this.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from typing import Any


@dataclass(frozen=True)
class Knob:
    """A parameter. Numbers must always be finite, whole numbers a multiple of ``multiple``."""

    default: int | float | str | bool
    about: str
    """A description; it is read after the name."""
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    """``above`` and ``below`` exclude the bound, ``least`` and ``most`` include it."""
    multiple: int | None = None
    choices: tuple[Any, ...] = ()
    unit: str = ""

    @property
    def meaning(self) -> str:
        """On one line: ``of SGD; above 0`` or ``of the ranks; one of common, own``."""
        unit = [f"in {self.unit}"] if self.unit else []
        choices = [f"one of {', '.join(map(str, self.choices))}"] if self.choices else []
        return "; ".join([self.about, *unit, *choices, *self._bounds()])

    def refuse_unless_within(self, name: str, value: Any) -> None:
        """Raise ValueError, naming the bounds, for a value out of bounds."""
        if not self._has_within(value):
            raise ValueError(f"scenario.{name}={value}: {self._must()}")

    def _has_within(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True  # config checks the types
        finite = abs(value) <= sys.float_info.max  # isfinite raises for huge whole numbers
        bounds = ((holds, getattr(self, name)) for name, (holds, _) in BOUNDS.items())
        return finite and all(holds(value, bound) for holds, bound in bounds if bound is not None)

    def _must(self) -> str:
        if self.choices:
            return f"choose {' or '.join(map(str, self.choices))}"
        finite = ["finite"] if isinstance(self.default, float) else []
        *others, ending = [*self._bounds(), *finite]
        return f"must be {', '.join(others)} and {ending}" if others else f"must be {ending}"

    def _bounds(self) -> list[str]:
        pairs = ((word, getattr(self, name)) for name, (_, word) in BOUNDS.items())
        return [word.format(f"{bound:g}") for word, bound in pairs if bound is not None]


BOUNDS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "above": (lambda value, bound: value > bound, "above {}"),
    "least": (lambda value, bound: value >= bound, "at least {}"),
    "below": (lambda value, bound: value < bound, "below {}"),
    "most": (lambda value, bound: value <= bound, "at most {}"),
    "multiple": (lambda value, bound: value % bound == 0, "a multiple of {}"),
}


def params_class(
    knobs: Mapping[str, Knob], check: Callable[[Any], None] | None = None
) -> type[Any]:
    """The class ``Params`` of these parameters. Its values are checked when it is created, and then
    by ``check``, which raises ValueError for those that do not go together."""

    def check_all(params: Any) -> None:
        for name, knob in knobs.items():
            knob.refuse_unless_within(name, getattr(params, name))
        if check is not None:
            check(params)

    fields = ((k, type(knob.default), field(default=knob.default)) for k, knob in knobs.items())
    return make_dataclass("Params", fields, namespace={"__post_init__": check_all})
