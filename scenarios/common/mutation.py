"""Mutations of upstream: faults that are not the documented bug, made by the same mechanism.

A detector that reports its bug for any wrong training is useless, and so is a trigger that counts
as exercised while upstream does something else. So a scenario is run with other faults as well: no
clipping, a gradient of zeros, a step left out. None may come out as the documented symptom, and
none as clean.

A bug's ``mutations.py`` lists them in ``MUTATIONS``; ``python -m tests.mutations`` runs them and
keeps the results in ``mutations.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
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

    def of(self, scenario: Scenario) -> Variant:
        """The scenario's variant with the mutation in it, of which nothing is expected."""
        base = scenario.variants[self.variant]
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
