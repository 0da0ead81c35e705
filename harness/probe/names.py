"""Names of parameters that differ only in what stands before them.

On one rank a script may call a model, and on several what contains it: Lightning calls a module's
``model`` on one rank (``embedding.weight``), and on several the whole module in DDP
(``model.embedding.weight``). The stages of a pipeline may all have the same names, and are told
apart by their numbers where one rank has several of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from harness.probe.reference import BY_NAME
from harness.probe.runs import Step


def as_in(right: Step, steps: Sequence[Step]) -> list[Step]:
    """A rank's steps with the names that the reference has for the same parameters."""
    if not steps:
        return []
    here, there = set(steps[0]["update"]), set(right["update"])
    named = _numbered(steps[0].get("stage"), here, there) or _renaming(here, there)
    return [_renamed(step, named) for step in steps] if named else list(steps)


def _numbered(stage: int | None, here: set[str], there: set[str]) -> Callable[[str], str] | None:
    """What puts the number of a rank's first stage before the names of its parameters, if the
    reference has all of them like that."""

    def named(name: str) -> str:
        return f"{stage}.{name}" if f"{stage}.{name}" in there else name

    found = {named(name) for name in here}
    return named if stage is not None and found != here and found <= there else None


def _renaming(here: set[str], there: set[str]) -> Callable[[str], str] | None:
    """What makes the names that are here those that are there: a prefix less, or one more."""
    if not here or here & there:
        return None
    first = min(here)
    for other in there:
        for named in (
            partial(_without, first.removesuffix(other)),
            partial(_with, other.removesuffix(first)),
        ):
            if {named(name) for name in here} <= there:
                return named
    return None


def _without(prefix: str, name: str) -> str:
    return name.removeprefix(prefix) if prefix.endswith(".") else name


def _with(prefix: str, name: str) -> str:
    return prefix + name if prefix.endswith(".") else name


def _renamed(step: Step, named: Callable[[str], str]) -> Step:
    def of(values: Mapping[str, Any]) -> dict[str, Any]:
        return {named(name): value for name, value in values.items()}

    found = {what: of(step[what]) for what in BY_NAME if step.get(what)}
    return {**step, **found, "parts": [of(part) for part in step["parts"]]}
