"""Mutations: faults put into upstream like a defect, but other than the documented bug.

A detector that reports its bug for any wrong training is useless. So is a trigger that counts as
exercised while upstream does something else. So each scenario also runs with other faults: without
clipping, with gradients of zero, with a step left out. No such trial may come out as the documented
symptom, and none as clean.

A bug's ``mutations.py`` lists them in ``MUTATIONS``; ``python -m tests.mutations`` runs them and
writes the results to ``mutations.json``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from harness.bugs import api


@dataclass(frozen=True)
class Mutation:
    """An edit that is not the documented bug, and the variant that it is put into."""

    defect: api.Defect
    variant: str = "fixed"

    @property
    def name(self) -> str:
        """The name of the mutated variant: ``fixed_no_clipping``."""
        return f"{self.variant}_{self.defect.name}"

    def of(self, scenario: api.Scenario) -> api.Variant:
        """The scenario's variant with the mutation; no outcome is expected of it."""
        base = scenario.variants[self.variant]
        return replace(
            base, about=self.defect.about, expect=None, defects=(*base.defects, self.defect)
        )


def mutation(
    file: str, scope: str, about: str, *, variant: str = "fixed"
) -> Callable[[Callable[[Any], api.Edits]], Mutation]:
    """Make a mutation of the decorated edit, which changes ``scope`` in ``file`` as the edit of a
    Defect does. The mutation has the name of the edit."""

    def of(edit: Callable[[Any], api.Edits]) -> Mutation:
        folder = file.partition("/")[0]
        upstream = {"megatron": "megatron-core"}.get(folder, folder)
        return Mutation(api.Defect(upstream, file, scope, edit, about), variant)

    return of


def repeated(lines: Iterator[Any]) -> api.Edits:
    """Run the line twice."""
    import libcst as cst

    for line in lines:
        yield line, cst.FlattenSentinel([line, line.deep_clone()])


def guarded(lines: Iterator[Any], condition: str) -> api.Edits:
    """Run the line only if the condition holds."""
    import libcst as cst

    for line in lines:
        body = cst.IndentedBlock([line])
        yield line, cst.If(cst.parse_expression(condition), body)
