"""Mutations of upstream: defects that are not the documented one, put in by the same mechanism.

A detector that takes any wrong training for its bug is no detector, and a trigger that counts as
exercised while upstream does something else proves nothing. So each scenario is run with defects of
another kind: no clipping, a gradient of zeros, a step left out. None may come out as the documented
symptom, and none as clean: what is told is inconclusive, a crash or an undocumented finding.

A module for each scenario holds its ``MUTATIONS``; ``python -m tests.mutations`` runs them. There
are none for ``device_math``, whose upstream is torch itself: it has no overlay to put one into.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from harness.spec import Defect, Edits, Scenario, Variant


@dataclass(frozen=True)
class Mutation:
    """A defect that is not the documented one, and the variant that it is put into."""

    defect: Defect
    variant: str = "fixed"

    @property
    def name(self) -> str:
        """The name of the variant that it becomes: ``fixed_no_clipping``."""
        return f"{self.variant}_{self.defect.name}"

    def of(self, told: Scenario) -> Variant:
        """The scenario's variant with the mutation in it, of which nothing is expected."""
        base = told.variants[self.variant]
        return replace(
            base, about=self.defect.about, expect=None, defects=(*base.defects, self.defect)
        )


def mutation(
    name: str, file: str, scope: str, about: str, *, variant: str = "fixed"
) -> Callable[[Callable[[Any], Edits]], Mutation]:
    """Make a mutation of the function below: an edit as a Defect's, of ``scope`` in ``file``."""

    def of(edit: Callable[[Any], Edits]) -> Mutation:
        upstream = file.partition("/")[0]
        named = {"megatron": "megatron-core"}.get(upstream, upstream)
        return Mutation(Defect(name, named, file, scope, edit, about), variant)

    return of


def mutations() -> dict[str, tuple[Mutation, ...]]:
    """The mutations of each scenario that has some, by its name, sorted."""
    names = sorted(m.name for m in iter_modules(__path__) if not m.name.startswith("_"))
    return {name: import_module(f"{__name__}.{name}").MUTATIONS for name in names}
