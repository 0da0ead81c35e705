"""A resumed Trainer goes on with the batch size of the checkpoint, and another accumulation.

This affected users who resume with other ``per_device_train_batch_size`` and
``gradient_accumulation_steps``, as for another GPU, and leave their product as it was. The Trainer
takes the accumulation from the arguments and the batch size from the checkpoint. Resumed with
batches of 4 instead of 1, and 1 micro-batch instead of 4, each step has 1 row instead of 4, and the
training plans 32 steps instead of 8. It skips too few rows, so some come twice. The other way round
it plans 2 steps, and ends at once. A line of the log says that arguments and checkpoint differ, but
not which of them is used.

Root cause: a checkpoint has the batch size, so that one that ``auto_find_batch_size`` has found is
used again. The Trainer writes it into each checkpoint, and reads it at each resume.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api

TOTAL = 4
"""Rows of a step, before and after the resume."""


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.stop >= params.epochs * params.rows // TOTAL:
        raise ValueError("stop must be before the last step")


RUNS = ("save", "resume")


def plan(at: api.Position) -> api.Plan:
    """Of each run: the rows of its steps, all rows in order, and the steps that it planned."""
    facts = {"steps": api.many(api.COUNT), "seen": api.many(api.COUNT), "planned": api.COUNT}
    return {name: api.Kind(facts) for name in RUNS}


def run(ctx: api.Context) -> None:
    """Train and stop; resume from the checkpoint, with another batch size."""
    from scenarios.transformers import _linear_runs as runs

    p = ctx.params
    for name in RUNS:
        batch = p.before if name == "save" else p.after
        with ctx.phase(name):
            trainer, model, watch = runs.train(
                ctx,
                name,
                p.stop,
                p.rows,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=TOTAL // batch,
                num_train_epochs=p.epochs,
            )
        planned = trainer.state.max_steps
        ctx.record(name, steps=watch.steps, seen=model.seen, planned=planned)


def detect(records: api.Records) -> api.Finding | None:
    """The resumed run has the old batch size and the new accumulation: that follows for the rows of
    each step, the planned steps, and the rows that it skips."""
    p, (save,), (resume,) = records.params, records.of("save"), records.of("resume")
    total = p.rows * p.epochs
    if set(resume["steps"]) == {TOTAL} and resume["planned"] == save["planned"]:
        return None
    wrong = p.before * TOTAL // p.after
    rows, steps = len(resume["seen"]), resume["steps"]
    text = f"a step had {steps[0]} rows, not {TOTAL}" if steps else "no step came"
    return api.Finding(
        f"resumed with batches of {p.after} instead of {p.before}: {text}; "
        f"{resume['planned']} steps were planned, not {save['planned']}; {rows} rows came, not "
        f"{total - len(save['seen'])}",
        step=p.stop + 1,
        ranks=records.ranks,
        magnitude=wrong / TOTAL,
        unit="times the rows of a right step",
        documented=set(save["steps"]) == {TOTAL}
        and set(steps) <= {wrong}
        and resume["planned"] == total // wrong
        and rows == max(0, total - p.stop * wrong),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The batch size after the resume is another one."""
    p = records.params
    return api.Exercise.of(
        p.before != p.after,
        f"saved with batches of {p.before}, resumed with {p.after}, always {TOTAL} rows a step",
        "the batch size was the same",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """All rows come."""
    seen = {*records.of("save")[0]["seen"], *records.of("resume")[0]["seen"]}
    return {"a row never came": seen != set(range(records.params.rows))}


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """The rows of a step before and after the resume."""
    bars = [
        (variant, name, float(rows))
        for variant, records in trials.items()
        for name in RUNS
        for rows in records.of(name)[0]["steps"][:1]
    ]
    yield api.Bars(
        "How many rows a step has",
        "with the bug a step of the resumed run has another number of rows than one before",
        bars,
        "rows",
    )
