"""Resumed in its second epoch or later, a Trainer that groups rows by length skips some of them.

The resumed run goes on in the order of the first epoch. In the epoch of the resume some rows
therefore come twice and others never, here 6 of 24. This affects users who train on texts of
different lengths and resume from checkpoints. A resume within the first epoch is right, and so is
one with the default sampler. Losses look normal.

Root cause: ``LengthGroupedSampler`` has no generator of its own in the Trainer, so it draws the
order of an epoch from torch's global generator. On a resume the Trainer draws the order of the
current epoch again, and skips batches. But the generator is then in the state that the seed gives
it. That is the state from which the order of the first epoch was drawn. Up to 4.40.2 the Trainer
drew the orders of past epochs first; pull request 30501 removed that.

We know of no report. Pull request 40691 mended the default sampler, and 48025 gives a generator to
the sampler of evaluations only.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.transformers import _resumed_rows as resumed

oracle = resumed.Resumed()


def run(ctx: api.Context) -> None:
    """Train without a stop; train and stop; resume from the checkpoint."""
    from scenarios.transformers import _resumed_loop as loop

    steps = loop.trained(ctx, ctx.params.grouped)
    ctx.record("order", rows=[row for step in steps for row in step])


def detect(records: api.Records) -> api.Finding | None:
    """The resumed run goes on in the first epoch's order, so some rows of its epoch never come."""
    whole, stopped = resumed.orders(records)
    if whole == stopped:
        return None
    number, rows_done = resumed.stop(records)
    epoch = stopped[number]
    never = records.params.rows - len(set(epoch))
    same_before = [*whole[:number], whole[number][:rows_done]] == [
        *stopped[:number],
        epoch[:rows_done],
    ]
    return api.Finding(
        f"resumed after step {records.params.stop}: in that epoch {len(set(epoch))} of "
        f"{len(epoch)} rows came, {never} never and {never} a second time",
        step=records.params.stop + 1,
        ranks=records.ranks,
        magnitude=never / len(epoch),
        unit="of the epoch's rows seen by nobody",
        documented=same_before and epoch[rows_done:] == whole[0][rows_done:] and never > 0,
    )


def exercised(records: api.Records) -> api.Exercise:
    """Rows were grouped, and the run was resumed in the second epoch or later, within the epoch."""
    p = records.params
    epoch, rows_done = resumed.stop(records)
    return api.Exercise.needs(p.grouped, "rows were not grouped by length") & api.Exercise.of(
        epoch > 0 and rows_done > 0,
        f"resumed after {rows_done} of {p.rows} rows of epoch {epoch + 1}, grouped by length",
        f"resumed in epoch {epoch + 1}, after {rows_done} of its rows",
    )
