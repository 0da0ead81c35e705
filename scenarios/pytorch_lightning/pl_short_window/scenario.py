"""The last, shorter accumulation window of an epoch is divided by the full number of micro-batches.

With ``accumulate_grad_batches=4`` and 13 batches in an epoch, the last update has one micro-batch
and a quarter of its gradient. This affects everyone whose epochs do not divide: these rows have
less weight than all others, in each epoch. With Adam the small gradient also enters the moments, so
that the first steps of the next epoch are too large. An epoch that is shorter than one window, as
in fine-tuning on few rows, trains at a fraction of its gradient throughout. The losses are right.

Root cause: Lightning divides each loss by ``accumulate_grad_batches`` before it knows how long the
window will be, and steps at the end of an epoch in any case.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import applied, usual_checks


def by_length(class_: Any) -> api.Edits:
    """A loss is divided by the micro-batches that its window has in this epoch."""
    import libcst as cst
    import libcst.matchers as m

    full = "trainer.accumulate_grad_batches"
    rest = f"trainer.num_training_batches - trainer.fit_loop.batch_idx // {full} * {full}"
    for window in m.findall(class_, m.Attribute(m.Name("trainer"), m.Name(full.split(".")[1]))):
        yield window, cst.parse_expression(f"min({full}, {rest})")


def by_full_window(step: applied.Step, records: api.Records) -> bool:
    """Each step applied the sum of its micro-batches' gradients, divided by the number of
    micro-batches of a full window. The losses are plain torch's."""
    return step.times(len(step.micro) / records.params.accumulation)


oracle = applied.Applied(
    applied.Step,
    by_full_window,
    replicas=True,
    loss="parts",
    checks=[usual_checks.loss_ends_higher],
)


def run(ctx: api.Context) -> None:
    """Fit a linear map with Lightning; compare each step with plain torch's gradients."""
    from scenarios.pytorch_lightning import _accumulating as accumulating

    accumulating.fit(ctx, accumulating.Map, left_out=ctx.params.left_out)


def check_params(params: Any) -> None:
    if params.left_out >= params.accumulation:
        raise ValueError("left_out must be less than accumulation")


def exercised(records: api.Records) -> api.Exercise:
    """The last step had fewer micro-batches than the others."""
    length, full = len(records.typed(applied.Step)[-1].micro), records.params.accumulation
    return api.Exercise.of(length < full, f"the last window had {length} of {full} micro-batches")
