"""Before its first update, EMAWeightAveraging validates and saves the weights of the beginning.

This affects users of Lightning's ``EMAWeightAveraging``, or of ``WeightAveraging``, who begin to
average late, as is usual: ``update_starting_at_step=1000``. Until that step each validation
evaluates the untrained weights of the beginning, so early stopping and the choice of the best
checkpoint work with constants. Checkpoints have the untrained weights in ``state_dict``. If the
training ends before that step, for example because the step is counted in batches but the run
accumulates, the trained weights are replaced by those of the beginning when ``fit`` ends.

Root cause: the callback copies the model when ``fit`` begins. It swaps this copy with the model
for each validation, and copies it into the model at the end, whether or not it was ever updated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api

EVERY = 2
"""Steps between two validations."""


def unless_empty(function: Any) -> api.Edits:
    """An average that was never updated is neither swapped nor copied."""
    import libcst as cst
    import libcst.matchers as m

    for line in m.findall(function, m.SimpleStatementLine([m.Assert()])):
        yield line, cst.parse_statement("if not self._average_model.n_averaged:\n    return\n")


def saved_as_it_is(function: Any) -> api.Edits:
    """A checkpoint has the model itself until the average was updated."""
    import libcst as cst
    import libcst.matchers as m

    is_none = m.Comparison(comparisons=[m.ComparisonTarget(m.Is(), m.Name("None"))])
    for test in m.findall(function, is_none):
        yield (
            test,
            cst.parse_expression(
                "self._average_model is None or not self._average_model.n_averaged"
            ),
        )


def plan(at: api.Position) -> api.Plan:
    """The weight after each step, in each validation, in the file and after the training."""
    p = at.params
    weights = {"after": api.many(api.NUMBER, p.steps), "begin": api.NUMBER}
    validated = api.many(api.NUMBER, p.steps // EVERY)
    run = {**weights, "validated": validated, "file": api.NUMBER, "left": api.NUMBER}
    return {"run": api.Kind(run)}


def run(ctx: api.Context) -> None:
    """Train with EMAWeightAveraging, and validate between steps; read the checkpoint."""
    from scenarios.pytorch_lightning.pl_ema_initial import training

    ctx.record("run", **training.fit(ctx, EVERY))


def _expected(records: api.Records) -> list[float]:
    """The right weight at each step: the average, or the trained weight before the first update."""
    p, after = records.params, records.of("run")[0]["after"]
    weights: list[float] = []
    for step, weight in enumerate(after):
        is_average = step > p.start
        average = p.decay * weights[-1] + (1 - p.decay) * weight if is_average else weight
        weights.append(average)
    return weights


def _uses(records: api.Records) -> Iterator[tuple[str, int, float]]:
    """Where a weight was used, after how many steps, and its value."""
    run, steps = records.of("run")[0], records.params.steps
    for number, weight in enumerate(run["validated"], 1):
        yield "validated", number * EVERY, weight
    yield "saved", steps, run["file"]
    yield "left by fit", steps, run["left"]


def detect(records: api.Records) -> api.Finding | None:
    """Before the first update of the average, the weight of the beginning is used; after it, the
    average is used, which is right."""
    p, expected, begin = records.params, _expected(records), records.of("run")[0]["begin"]
    faults = [
        (where, step, weight)
        for where, step, weight in _uses(records)
        if not api.near(weight, expected[step - 1], within=1e-6)
    ]
    if not faults:
        return None
    where, step, weight = faults[-1]
    return api.Finding(
        f"{len(faults)} of {len(list(_uses(records)))} uses have another weight than they should; "
        f"after step {step}, {weight:.4g} was {where}, and {expected[step - 1]:.4g} is right; the "
        f"weight of the beginning was {begin:.4g}",
        step=faults[0][1],
        ranks=records.ranks,
        magnitude=len(faults) / len(list(_uses(records))),
        unit="of the uses",
        documented=all(weight == begin and step <= p.start for _, step, weight in faults),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The weights were validated before the first update of the average."""
    p = records.params
    text = f"{p.steps} steps, a validation after each {EVERY}; averaged after {p.start} steps"
    return api.Exercise.of(p.start >= EVERY, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The training itself is right."""
    after = records.of("run")[0]["after"]
    return {"a step leaves the weight unchanged": len(set(after)) < len(after)}


picture = api.bars(
    "The weights that were validated and saved",
    "with the bug they are that of the beginning, 0, until the average is updated",
    lambda records: [(f"{where}, step {step}", weight) for where, step, weight in _uses(records)],
    "weight",
)
