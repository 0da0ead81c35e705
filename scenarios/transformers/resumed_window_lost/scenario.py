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
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.transformers._history import OLD_ACCELERATE


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(10, least=4, about="of the dataset, in batches of one row")
    accumulation: int = api.knob(4, least=1, about="gradient_accumulation_steps")
    epochs: int = api.knob(2, least=1, about="of training")
    stop: int = api.knob(1, least=1, about="step after which the first run stops")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stop >= self.epochs * self.windows:
            raise ValueError("stop must be before the last step")

    @property
    def windows(self) -> int:
        """Steps of an epoch."""
        return -(-self.rows // self.accumulation)


SCENARIO = api.Scenario(
    report=(
        "Resuming training from an interrupted checkpoint fails to save the final checkpoint.",
        "https://github.com/huggingface/transformers/issues/38939",
    ),
    fix="4.57.6 is right; we do not know the pull request",
    symptom="after a resume do_sync_step is never set at the end of the epoch, so that the run "
    "ends without its last step and checkpoint",
    trigger="a resume within an epoch, and gradient_accumulation_steps that do not divide its "
    "batches",
    remedy="save at the ends of epochs only, or choose a number of batches that "
    "gradient_accumulation_steps divides",
    pins={"transformers": "4.52.4", "accelerate": "1.13.0"},
    companions=(OLD_ACCELERATE,),
    decided_by=("transformers",),
    named_by=("attest: huggingface/transformers#38939",),
    harm="wrong resume",
    visibility="silent",
    settings={
        "trainer": True,
        "gradient_accumulation_steps": api.above(1),
        "code": api.by_code("it resumes within an epoch, whose batches the steps do not divide"),
    },
    files=("transformers/trainer.py",),
    ranks=1,
    absent=(
        api.Absent(
            "transformers>=4.20.1,<4.28",
            "a resume counts the skipped batches of its epoch, too",
            "https://github.com/huggingface/transformers/blob/v4.26.1/src/transformers/trainer.py",
        ),
    ),
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean("4.57.6"),
        "control": api.control("4.52.4, resumed at the end of an epoch", params={"stop": 3}),
        "whole_windows": api.control(
            "4.52.4 with a number of batches that the steps divide", params={"rows": 8}
        ),
        "last_epoch": api.expect_symptom(
            about="4.52.4, resumed in the last epoch: rows are never trained", params={"stop": 4}
        ),
    },
)

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
                max_steps=p.epochs * p.windows,
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
    window = p.windows - 1 - p.stop % p.windows
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
    last = p.rows - (p.windows - 1) * p.accumulation
    return [*[p.accumulation] * (p.windows - 1), last] * epochs


def _merged(steps: list[int], window: int) -> list[int]:
    """The steps if the rows of one of them come into the next one."""
    before, (rows, after, *behind) = steps[:window], steps[window:]
    return [*before, rows + after, *behind]


def exercised(records: api.Records) -> api.Exercise:
    """The run was resumed within an epoch whose last window is shorter than the others."""
    p = records.params
    windows_done, short = p.stop % p.windows, p.rows % p.accumulation
    return api.Exercise.of(
        windows_done > 0,
        f"resumed after {windows_done} of {p.windows} steps of an epoch",
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
