"""Typed facts: a dataclass gives the name, the type and the shape of each fact at once.

    @dataclass(frozen=True)
    class Step(Entry):
        loss: Number
        norm: Annotated[float, alike(SIZE)]

    def plan(at: Position) -> Plan:
        return {"step": Kind(Step.shapes(), each(at.params.steps))}

``records.typed(Step)`` are the records as objects of this class. The files contain what they would
contain without it. Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from harness.bugs.api.plan import KEYS
from harness.bugs.api.shapes import COUNT, FLAG, NUMBER, SIZE, Shape, held

Number = Annotated[float, NUMBER]
Size = Annotated[float, SIZE]
Count = Annotated[int, COUNT]
Flag = Annotated[bool, FLAG]

F = TypeVar("F", bound="Fields")


class Fields:
    """The base class of a dataclass whose fields are facts, or the content of a fact that is an
    object. The shape of a field is in its annotation; a field of another such class has the shapes
    of that class."""

    @classmethod
    def shapes(cls, **special: Shape) -> dict[str, Shape]:
        """The shapes of the facts; those of ``special`` depend on the trial. A fact with a default
        is only in some trials: its shape must be special."""
        return {
            **{
                name: _shape(hint)
                for name, hint in _hints(cls).items()
                if not hasattr(cls, name) and name not in {*KEYS, *special}
            },
            **special,
        }

    @classmethod
    def of(cls: type[F], record: Mapping[str, Any]) -> F:
        """The facts of a record, or of an object in it. Other facts are left out."""
        return cls(
            **{
                name: part.of(record[name]) if (part := _part(hint)) else record[name]
                for name, hint in _hints(cls).items()
                if name in record
            }
        )


@dataclass(frozen=True)
class Entry(Fields):
    """The facts of a record that belongs to a step."""

    rank: int
    step: int


_hints: Callable[[Any], dict[str, Any]] = cache(partial(get_type_hints, include_extras=True))
"""The annotation of each field of a class, by name."""


def _part(hint: Any) -> type[Fields] | None:
    """The class of a fact that is an object: of the annotation ``Part`` or ``Part | None``."""
    for kind in (hint, *get_args(hint)):
        if get_origin(kind) is None and isinstance(kind, type) and issubclass(kind, Fields):
            return kind
    return None


def _shape(hint: Any) -> Shape:
    part = _part(hint)
    shape: Shape = held(part.shapes()) if part else hint.__metadata__[0]
    return shape
