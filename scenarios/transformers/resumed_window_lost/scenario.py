"""A resumed Trainer makes no step of the last, shorter window of the epoch in which it resumes.

This affected users who resume within an epoch and accumulate gradients, if the batches of an epoch
are no multiple of ``gradient_accumulation_steps``. The gradients of the last batches stay where
they are, and come into the first step of the next epoch, which is then too large. In the last epoch
they come into no step: these rows are read and never trained. The run ends one step early, so the
schedule does not reach its end, and no last checkpoint is saved. If ``max_steps`` is set, some
releases begin a further epoch instead. There is no warning.

Root cause: the Trainer steps at the end of a whole window, and at the batch whose number is that of
the batches of an epoch. After a resume it counts the batches from 0, and not from those that it
skipped, so that number never comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api


def windows(params: Any) -> int:
    """Steps of an epoch."""
    return -(-int(params.rows) // int(params.accumulation))


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.stop >= params.epochs * windows(params):
        raise ValueError("stop must be before the last step")


RUNS = ("whole", "save", "resume")


def plan(at: api.Position) -> api.Plan:
    """Of each run: how many rows came before each of its steps, how many after the last, and the
    rate at the end."""
    facts = {"steps": api.many(api.COUNT), "after": api.COUNT, "rate": api.SIZE}
    return {name: api.Kind(facts) for name in RUNS}


def run(ctx: api.Context) -> None:
    """Train without a stop; train and stop; resume from the checkpoint."""
    from scenarios.transformers import _linear_runs as runs

    p = ctx.params
    for name in RUNS:
        with ctx.phase(name):
            trainer, model, watch = runs.train(
                ctx,
                name,
                p.stop,
                p.rows,
                per_device_train_batch_size=1,
                gradient_accumulation_steps=p.accumulation,
                max_steps=p.epochs * windows(p),
            )
        rate = float(trainer.lr_scheduler.get_last_lr()[0])
        after = len(model.seen) - sum(watch.steps)
        ctx.record(name, steps=watch.steps, after=after, rate=rate)


def detect(records: api.Records) -> api.Finding | None:
    """The last window of the resumed epoch is no step: its rows come into the next step, or, if the
    run ends there, into none. All other steps are those of the run without a stop; there may be one
    more at the end, of a further epoch."""
    whole, save, resume = (records.of(name)[0] for name in RUNS)
    p = records.params
    rest = whole["steps"][p.stop :]
    if resume["steps"] == rest and not resume["after"]:
        return None
    window = windows(p) - 1 - p.stop % windows(p)
    late = _merged(_planned(p, p.epochs + 1)[p.stop :], window)[: len(resume["steps"])]
    text = f"resumed after step {p.stop} of {len(whole['steps'])}, the run ended at step "
    text += f"{p.stop + len(resume['steps'])}; the rows of its steps were {resume['steps']}, not "
    text += f"{rest}" + (f"; {resume['after']} rows came into no step" if resume["after"] else "")
    return api.Finding(
        text,
        step=p.stop + window + 1,
        ranks=records.ranks,
        magnitude=1 / len(whole["steps"]),
        unit="of the steps was left out",
        documented=whole["steps"] == _planned(p, p.epochs)
        and save["steps"] == whole["steps"][: p.stop]
        and resume["steps"] == late
        and len(rest) - len(late) in (0, 1),
    )


def _planned(p: Any, epochs: int) -> list[int]:
    """The rows of each step of a right run."""
    last = p.rows - (windows(p) - 1) * p.accumulation
    return [*[p.accumulation] * (windows(p) - 1), last] * epochs


def _merged(steps: list[int], window: int) -> list[int]:
    """The steps if the rows of one of them come into the next one."""
    before, (rows, after, *behind) = steps[:window], steps[window:]
    return [*before, rows + after, *behind]


def exercised(records: api.Records) -> api.Exercise:
    """The run was resumed within an epoch whose last window is shorter than the others."""
    p = records.params
    windows_done, short = p.stop % windows(p), p.rows % p.accumulation
    return api.Exercise.of(
        windows_done > 0,
        f"resumed after {windows_done} of {windows(p)} steps of an epoch",
        "resumed at the end of an epoch",
    ) & api.Exercise.of(
        short > 0,
        f"{p.accumulation} batches in a step, {short} in an epoch's last",
        "all steps of an epoch have the same number of batches",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The resumed run reads all rows."""
    p, (resume,) = records.params, records.of("resume")
    came = sum(resume["steps"]) + resume["after"]
    return {"another number of rows came": came != sum(_planned(p, p.epochs)[p.stop :])}


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """The rows of each step after the resume."""
    bars = [
        (variant, f"step {number}", float(rows))
        for variant, records in trials.items()
        for number, rows in enumerate(records.of("resume")[0]["steps"], records.params.stop + 1)
    ]
    yield api.Bars(
        "How many rows each step after the resume had",
        "with the bug the last step of an epoch is missing, and its rows come into the next one",
        bars,
        "rows",
    )
