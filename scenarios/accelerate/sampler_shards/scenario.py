"""Ranks with different seeds shuffle differently: nobody sees 19 to 30 % of the data of an epoch.

A DataLoader with ``shuffle=True`` that accelerate has prepared shuffles the complete dataset on
every rank; each rank then takes its own batches of that order. That is right only if all ranks have
the same order. Otherwise two ranks see some samples, and no rank sees others. The number of batches
is right, so nothing shows it.

This affects users who seed each rank differently, with ``set_seed(seed, device_specific=True)``:
here two ranks together saw 45 to 52 of 64 samples in an epoch. Users who give all ranks the same
seed are not affected.

Root cause: 0.25.0 made each rank's SeedableRandomSampler start from ``torch.initial_seed()``, which
is the rank's own seed. Since 0.26.0 torch's RandomSampler is the default. Its generator is None, so
it takes a new seed from each rank's global generator, and ``synchronize_rng_states`` has no
generator to synchronise. The fix gives that sampler a generator and synchronises it. It does not
change the seedable sampler, which was an option by then: with that option, 1.15.0 still has the
bug.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.accelerate import _coverage as coverage

BATCH = 4
"""Samples in a batch of a rank."""


def plan(at: api.Position) -> api.Plan:
    """The samples that came in each epoch."""
    return coverage.plan(at.params.epochs)


def run(ctx: api.Context) -> None:
    """Iterate over a prepared loader for some epochs; record which samples came."""
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader

    from scenarios.accelerate._accelerator import accelerator

    params = ctx.params
    samples: Any = range(params.samples)
    loading = {"use_seedable_sampler": True} if params.sampler == "seedable" else {}
    with ctx.phase("init"):
        engine = accelerator(ctx, **loading)
        # After the Accelerator, which knows the rank; before prepare, which may draw a seed.
        set_seed(ctx.seed, device_specific=params.seeding == "device_specific")
        loader = engine.prepare(DataLoader(samples, batch_size=BATCH, shuffle=True))
    with ctx.phase("steps"):
        coverage.watch(ctx, loader, params.epochs)


def detect(records: api.Records) -> api.Finding | None:
    """In some epoch the ranks together did not see the dataset, though they saw as many samples;
    and each rank saw its share of an order of its own."""
    return coverage.misdrawn(records, BATCH) or coverage.incomplete(records)


def exercised(records: api.Records) -> api.Exercise:
    """The loader shuffled, and the ranks had different seeds."""
    return coverage.shuffled(records) & coverage.states_apart(records)


picture = coverage.seen_by
insufficient_checks = coverage.insufficient_checks
