"""By what does the Trainer divide with gradient accumulation: each update, and the logged loss?

A rank records ``step`` with ``applied.facts`` and what ``_trainer_rows`` adds, and at the end
``logged``, the losses that the Trainer has logged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks
from scenarios.transformers import _normaliser as normaliser


@dataclass
class Params(api.Knobs):
    accumulation: int = api.knob(
        4, choices=(1, 2, 4, 8), about="gradient_accumulation_steps: parts of the 8 rows of a step"
    )
    steps: int = api.knob(3, least=1, about="steps of training")
    lr: float = api.knob(0.1, above=0, about="learning rate of SGD")
    model: str = api.knob(
        "llama",
        choices=("llama", "plain"),
        about="the model; only the forward of llama accepts num_items_in_batch",
    )


@dataclass(frozen=True)
class Symptom:
    """All updates are multiplied by ``factor``, and the logged losses are of these kinds."""

    factor: float
    logged: Sequence[str]
    """One of these ``normaliser``s gives each loss that the Trainer has logged."""

    def holds_for(self, records: api.Records) -> bool:
        """Whether each update and each logged loss is as described."""
        return logged_as(records, self.logged) and multiplied(records, self.factor)


@dataclass(frozen=True)
class Accumulated(usual_checks.Checked):
    """The oracle of scenarios whose updates are multiplied or divided by the micro-batches."""

    documented: Callable[[Any], Symptom]
    """The symptom for the scenario's ``Params``."""
    unlike: str
    """The message if the logged loss is another one."""
    right: Sequence[str] = (normaliser.TOKENS,)
    """The kinds of the logged loss if no update is wrong."""
    instead: Mapping[str, Callable[[Any], Symptom]] = field(default_factory=dict)
    """Other bugs of the catalogue, by name."""
    checks: Sequence[usual_checks.Check] = (applied.same_direction,)
    """Checks that miss the bug."""
    picture: api.Pictures = applied.ratios

    @staticmethod
    def plan(at: api.Position) -> api.Plan:
        """Each step, with what it applied; at the end, what the Trainer has logged."""
        step = {
            "tokens": api.many(api.COUNT, least=1),
            "losses": api.many(api.NUMBER, least=1),
            "aside": api.SIZE,
            "rows": api.many(api.WHOLE, least=1),
            **applied.shapes(),
        }
        logged = {"losses": api.many(api.NUMBER, at.params.steps)}
        return {"step": api.Kind(step, api.each(at.params.steps)), "logged": api.Kind(logged)}

    def detect(self, records: api.Records) -> api.Finding | None:
        """The finding that updates are multiplied, as documented or as with another bug."""
        p = records.params
        for name, symptom_of in self.instead.items():
            if symptom_of(p).factor != 1 and symptom_of(p).holds_for(records):
                return _judged(records, symptom_of(p).factor, (), another=name)
        symptom = self.documented(p)
        update_wrong = any(not applied.times(step, 1) for step in records.of("step"))
        loss_expected = logged_as(records, symptom.logged if update_wrong else self.right)
        return _judged(records, symptom.factor, () if loss_expected else (self.unlike,))

    @staticmethod
    def exercised(records: api.Records) -> api.Exercise:
        """Each step of the optimizer came after several micro-batches: as many as were
        requested."""
        return applied.accumulated(records, lambda step: len(step["micro"]))


def run(ctx: api.Context) -> None:
    """Train a tiny model; compare each applied gradient with plain torch's on the same rows."""
    from scenarios.common.hf_trainer import logged
    from scenarios.transformers import _trainer_rows as rows

    with ctx.phase("init"):
        trainer = rows.trainer(ctx)
    with ctx.phase("steps"):
        trainer.train()
    ctx.record("logged", losses=logged(trainer))


def multiplied(records: api.Records, factor: float) -> bool:
    """Whether each update is the right one times ``factor``."""
    return all(applied.times(step, factor) for step in records.of("step"))


def _judged(
    records: api.Records, factor: float, faults: Iterable[str], another: str = ""
) -> api.Finding | None:
    """The finding, documented if each update is ``factor`` times the right one, and nothing else is
    wrong. ``faults`` are messages of other faults. With ``another`` it is the finding of that bug.
    """
    wrong_steps = [step for step in records.of("step") if not applied.times(step, 1)]
    messages = [*_otherwise_wrong(records), *faults]
    if wrong_steps:
        exactly = multiplied(records, factor) and not messages
        lines = [*messages, *map(applied.described, wrong_steps)]
        return applied.finding(
            wrong_steps,
            lines,
            documented=exactly and not another,
            another=another if exactly else "",
        )
    if messages:
        return api.Finding("\n".join(messages), ranks=records.ranks, documented=False)
    return None


def _otherwise_wrong(records: api.Records) -> Iterator[str]:
    """What is wrong besides the size of an update."""
    steps = records.of("step")
    rows = [row for step in steps for row in step["rows"]]
    if sorted(rows) != list(range(len(rows))):
        different = len({row for row in rows if row >= 0})
        yield f"the model was given {len(rows)} rows, only {different} of them different"
    for step in steps:
        if step["aside"]:
            yield f"the weights changed by up to {step['aside']:.3g} before step {step['step']}"
        size, first_size = len(step["rows"]), len(steps[0]["rows"])
        if size != first_size:
            yield f"step {step['step']} has {size} rows, but the first step had {first_size}"


def logged_as(records: api.Records, normalisers: Iterable[str]) -> bool:
    """Whether one of these normalisers gives each loss that the Trainer has logged."""
    steps, logged = records.of("step"), records.one("logged")
    losses = logged["losses"] if logged else []
    return len(losses) == len(steps) and any(
        all(
            name in normaliser.explains(loss, step["losses"], step["tokens"])
            for loss, step in zip(losses, steps, strict=True)
        )
        for name in normalisers
    )
