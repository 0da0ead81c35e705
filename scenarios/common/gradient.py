"""The oracle of gradients: at the same weights one gradient is right and another one is documented.

A step applied the right one, the documented one, or neither: only the second is the symptom, and
only if all steps did that and nothing else is wrong. ``applied`` compares a step with plain torch.
Others compare it in their own way, in a subclass of ``Gradient``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from harness.bugs import api

TOLERANCE = 1e-3
"""How far (as a fraction) a gradient may be from another. Rounding in fp32 moves it by 1e-5."""

S = TypeVar("S", bound=api.Entry)
"""What is recorded of a step."""


class Gradient(Generic[S]):
    """The oracle of scenarios whose steps apply another gradient than the right one."""

    documented: Callable[..., Any]
    """Whether a step, in the records of a trial, is wrong as documented. Its docstring is the
    symptom on the bug's page."""
    step: type[S]
    kind: str = "step"
    """The kind of the records that are judged."""
    checks: Sequence[api.Check]
    """Checks that miss the bug."""
    unit: str = "of the right gradient"
    """Of the error."""
    reason: str = ""
    """A line for the documented finding: what explains it. ``{ranks}`` stands for their number,
    ``{share}`` for one divided by it, and the name of a parameter for its value."""

    def is_right(self, step: S, records: api.Records) -> bool:
        """Whether a step applied the right gradient."""
        raise NotImplementedError

    def is_documented(self, step: S, records: api.Records) -> bool:
        """Whether a step is wrong as documented."""
        return bool(self.documented(step, records))

    def error(self, step: S, records: api.Records) -> float:
        """How far a step is from the right one."""
        raise NotImplementedError

    def describe(self, wrong_steps: Sequence[S], records: api.Records) -> Iterable[str]:
        """Lines about the wrong steps."""
        raise NotImplementedError

    def odd(self, records: api.Records) -> Iterable[str]:
        """Messages of other faults."""
        return ()

    def explain(self, steps: Sequence[S], records: api.Records) -> Iterable[str]:
        """Lines for the documented finding."""
        ranks = len(records.ranks)
        names = {"ranks": ranks, "share": 1 / ranks, **vars(records.params)}
        return filter(None, [self.reason.format(**names)])

    def are_all(self, judge: Callable[[S, api.Records], bool], records: api.Records) -> bool:
        """Whether all steps are wrong in one way, which ``judge`` knows, and nothing else is."""
        steps = records.typed(self.step, self.kind)
        some_wrong = any(not self.is_right(step, records) for step in steps)
        return some_wrong and not any(self.odd(records)) and all(judge(s, records) for s in steps)

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that steps applied another gradient than the right one."""
        steps, odd = records.typed(self.step, self.kind), list(self.odd(records))
        wrong_steps = [step for step in steps if not self.is_right(step, records)]
        if not (wrong_steps or odd):
            return None
        documented = self.are_all(self.is_documented, records)
        lines = [*odd, *(self.describe(wrong_steps, records) if wrong_steps else ())]
        lines += self.explain(steps, records) if documented else ()
        reported_steps = wrong_steps or steps
        return api.Finding(
            "\n".join(lines),
            step=min(step.step for step in reported_steps),
            ranks=tuple(sorted({step.rank for step in reported_steps})),
            magnitude=max(self.error(step, records) for step in reported_steps),
            unit=self.unit,
            documented=documented,
        )
