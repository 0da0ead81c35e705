"""Resumed in its second epoch or later, a Trainer replays the end of its first epoch.

The resumed run gets the rows that the first epoch had at that place: some rows of the current epoch
come a second time and others never, here 6 of 24. This affects users who resume transformers'
Trainer within an epoch, or who use ``skip_first_batches`` in their own loop. A resume within the
first epoch is right, and so are the epochs after the resume. Losses look normal.

Root cause: the Trainer sets the epoch of its loader. Then ``skip_first_batches`` makes another
loader, without the batches that are done. The new loader counts its epochs from 0, and sets this
epoch when its iteration begins: the seeded sampler goes back to epoch 0. The fix copies the count
to the new loader. Releases of transformers that set the epoch of the new loader are right with any
accelerate, so the bug depends on both packages. ``report.py`` is a loop without transformers: it
has the bug with the same releases of accelerate as a Trainer of transformers 4.46 to 4.57 has.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.bugs import api
from scenarios.transformers import _resumed_rows as resumed


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(24, least=8, most=32, multiple=4, about="of the dataset")
    epochs: int = api.knob(3, least=1, about="passes over the dataset")
    stop: int = api.knob(9, least=1, about="step after which the first run stops")


SCENARIO = api.Scenario(
    report=(
        "fix: preserve dataloader iteration state when resuming from checkpoint",
        "https://github.com/huggingface/accelerate/pull/4071",
        "https://github.com/huggingface/transformers/issues/40691",
    ),
    fix="https://github.com/huggingface/accelerate/pull/4071",
    symptom="after a resume in the middle of a later epoch the sampler's epoch is reset to 0, and "
    "the order of the data differs from that of an uninterrupted training",
    trigger="the Trainer or skip_first_batches, and a resume within the second epoch or later",
    remedy="resume at the end of an epoch",
    pins={"accelerate": "1.14.0", "transformers": "4.57.6"},
    without={"transformers": "4.57.6"},
    harm="wrong resume",
    visibility="silent",
    settings={
        "trainer": True,
        "code": api.by_code("it is resumed within an epoch after the first"),
    },
    files=("accelerate/data_loader.py",),
    ranks=1,
    launches=resumed.LAUNCHES,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("1.15.0"),
        "control": api.control("1.14.0, resumed within the first epoch", params={"stop": 3}),
        "epoch_end": api.control("1.14.0, resumed at the end of an epoch", params={"stop": 6}),
    },
)


def row_missing(records: api.Records) -> dict[str, bool]:
    """The next epoch is complete."""
    _, stopped = resumed.orders(records)
    missing = len(set(stopped[-1])) < records.params.rows
    return {"a row is missing in the last epoch": missing}


oracle = resumed.Resumed(checks=(resumed.another_number, row_missing))


def run(ctx: api.Context) -> None:
    """Train without a stop; train and stop; resume from the checkpoint."""
    from scenarios.transformers import _resumed_loop as loop

    steps = loop.trained(ctx, grouped=False)
    ctx.record("order", rows=[row for step in steps for row in step])


def detect(records: api.Records) -> api.Finding | None:
    """The rest of the epoch of the resume is the end of the first epoch; all other rows come as in
    the run without a stop, which sees each row once in each epoch."""
    p = records.params
    whole, stopped = resumed.orders(records)
    if any(sorted(epoch) != list(range(p.rows)) for epoch in whole):
        return api.Finding("without a stop, an epoch does not have each row once", documented=False)
    if whole == stopped:
        return None
    number, offset = resumed.stop(records)
    count = len(set(stopped[number]))
    replayed = whole[number][:offset] + whole[0][offset:]
    return api.Finding(
        f"resumed after {offset} of {p.rows} rows of epoch {number + 1}: {count} of {p.rows} rows "
        f"came in that epoch, {p.rows - count} never and {p.rows - count} a second time",
        step=p.stop + 1,
        ranks=records.ranks,
        magnitude=1 - count / p.rows,
        unit="of the epoch's rows seen by nobody",
        documented=stopped == [*whole[:number], replayed, *whole[number + 1 :]],
    )


def exercised(records: api.Records) -> api.Exercise:
    """The run was resumed within the second epoch or later, and its epochs have other orders."""
    p = records.params
    whole, _ = resumed.orders(records)
    number, offset = resumed.stop(records)
    text = f"resumed after {offset} of {p.rows} rows of epoch {number + 1}"
    orders = len({tuple(epoch) for epoch in whole})
    return api.Exercise.of(number > 0 and offset > 0, text) & api.Exercise.needs(
        orders == len(whole), f"{len(whole)} epochs have only {orders} orders"
    )
