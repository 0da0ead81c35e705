"""The ranks of an accelerate run shuffle apart, so that a third of the data is seen by nobody.

A prepared DataLoader with ``shuffle=True`` is shuffled whole on every rank, which then takes its
own batches of that order: right as long as all ranks have the same order. Where they do not, some
samples are seen twice in an epoch and others by no rank at all. The number of batches is right.

Who seeds the ranks alike does not meet it. Who seeds each rank differently, with
``set_seed(seed, device_specific=True)``, trained here on 45 to 52 of 64 samples an epoch.

Root cause: 0.25.0 made each rank's SeedableRandomSampler start from ``torch.initial_seed()``, which
is the rank's own. From 0.26.0 torch's RandomSampler is the default, whose generator is None: it
seeds one anew from each rank's global generator, and ``synchronize_rng_states`` has none to
synchronise. The fix gives that sampler a generator and synchronises it. It leaves the seedable
sampler out, an option by then: with it, the newest release still does so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from harness.facts.plan import Plan
from harness.knobs import Knobs, knob
from harness.spec import (
    Context,
    Exercise,
    Finding,
    Position,
    Records,
    Scenario,
    affected,
    unaffected,
)
from scenarios.accelerate.sampler_shards import coverage

BATCH = 4
"""Samples that a rank gets at once."""


@dataclass
class Params(Knobs):
    samples: int = knob(64, least=8, multiple=8, about="in the dataset")
    epochs: int = knob(3, least=1, about="of the loader")
    seeding: str = knob(
        "device_specific", choices=("device_specific", "common"), about="of the ranks"
    )
    sampler: str = knob(
        "default",
        choices=("default", "seedable"),
        about="what accelerate makes of shuffle=True, or its own SeedableRandomSampler",
    )


SCENARIO = Scenario(
    report=(
        "Fix the rng states of sampler's generator to be synchronized for correct sharding of "
        "dataset across GPUs",
        "https://github.com/huggingface/accelerate/pull/2694",
    ),
    fix="https://github.com/huggingface/accelerate/pull/2694 (0.30.0)",
    symptom="the ranks draw their shards from different orders: samples twice, others never",
    trigger="a prepared DataLoader with shuffle=True, and ranks that are seeded unlike",
    remedy="seed the ranks alike, or give the DataLoader a generator seeded alike on every rank",
    pins={"accelerate": "0.29.3"},
    goes_wrong="data",
    files=("accelerate/data_loader.py",),
    ranks=2,
    variants={
        "buggy": affected(),
        "fixed": unaffected("0.30.0"),
        "control": unaffected(
            about="0.29.3, the ranks seeded alike", params={"seeding": "common"}, triggers=False
        ),
        "alive": affected(
            "1.15.0",
            about="the newest release, with its seedable sampler",
            params={"sampler": "seedable"},
        ),
    },
)


def plan(at: Position) -> Plan:
    """What came in each epoch."""
    return coverage.plan(at.params.samples, BATCH, at.params.epochs)


def run(ctx: Context) -> None:
    """Go through some epochs of a prepared loader; write down which samples came."""
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader

    from scenarios.accelerate.sampler_shards.accelerator import accelerator

    params = ctx.params
    samples: Any = range(params.samples)
    loading = {"use_seedable_sampler": True} if params.sampler == "seedable" else {}
    with ctx.phase("init"):
        made = accelerator(ctx, **loading)
        # After the Accelerator, which knows the rank; before prepare, which may draw a seed.
        set_seed(ctx.seed, device_specific=params.seeding == "device_specific")
        loader = made.prepare(DataLoader(samples, batch_size=BATCH, shuffle=True))
    with ctx.phase("steps"):
        coverage.watch(ctx, loader, params.samples, BATCH, params.epochs)


def detect(records: Records) -> Finding | None:
    """In some epoch the union over the ranks is not the dataset, though its size is right, and
    each rank saw its share of an order that is its own."""
    return coverage.misdrawn(records) or coverage.incomplete(records)


def exercised(records: Records) -> Exercise:
    """The loader shuffled, and the ranks' generators were seeded unlike."""
    return coverage.shuffled(records) & coverage.states_apart(records)


picture = coverage.seen_by
insufficient_checks = coverage.blind
