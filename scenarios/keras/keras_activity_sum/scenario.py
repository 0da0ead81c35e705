"""keras adds an activity regularizer's terms of all rows, so that the batch size weighs it.

This affects users of keras 3 who train a layer with ``activity_regularizer``. The documentation
says that its value is divided by the batch size; it is the sum over all rows. The loss of the data
is a mean, so the regularizer is as many times too strong as a batch has rows, here 5 times. With
accumulation, or more ranks of smaller batches, a training of the same rows has another regularizer.
keras 2 divided. Only the size of ``model.losses`` shows it.

Root cause: ``Layer.__call__`` adds what the regularizer returns for all outputs. The fix divides it
by their first dimension.
"""

from __future__ import annotations

from harness.bugs import api

FACTOR, FEATURES = 0.01, 5
"""Of the regularizer, and of a row: the report's."""


def plan(at: api.Position) -> api.Plan:
    """The term of each step, and that of the mean row, which is right."""
    facts = {"term": api.SIZE, "row": api.SIZE}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a layer on its regularizers alone, from the report's weights and rows."""
    import keras
    import torch

    p = ctx.params
    with keras.device(str(ctx.device)):
        rows = 2 * torch.ones(p.rows, FEATURES, device=ctx.device)
        layer = keras.layers.Dense(
            FEATURES, kernel_initializer="ones", activity_regularizer=keras.regularizers.L2(FACTOR)
        )
        layer.build(rows.shape)
        optimizer = torch.optim.SGD([layer.kernel.value], p.lr)
        for step in api.each(p.steps):
            optimizer.zero_grad()
            outputs = layer(rows)
            (term,) = layer.losses
            mean = FACTOR * outputs.square().sum(1).mean()
            ctx.record("step", step, term=float(term.detach()), row=float(mean.detach()))
            term.backward()
            optimizer.step()


def detect(records: api.Records) -> api.Finding | None:
    """The term is the sum of the rows' terms, not their mean."""
    steps = records.of("step")
    wrong = [one for one in steps if not api.near(one["term"], one["row"], within=1e-5)]
    if not wrong:
        return None
    rows = records.params.rows
    first = wrong[0]
    return api.Finding(
        f"the regularizer's term is {first['term']:.4g}, not {first['row']:.4g}",
        step=first["step"],
        magnitude=first["term"] / first["row"],
        unit="times the right term",
        documented=len(wrong) == len(steps)
        and all(api.near(one["term"], rows * one["row"], within=1e-5) for one in steps),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The loss falls."""
    terms = [one["term"] for one in records.of("step")]
    return {"the loss at the end is not below that at the start": terms[-1] >= terms[0]}


picture = api.lines(
    "The regularizer's term",
    "with the bug it is that of all rows together",
    lambda record: record["term"],
    "step",
    y="term of the loss",
)
