"""With seed_everything(workers=True), torch's random numbers in workers never change.

This affects users of Lightning whose transforms draw from torch in the workers of a DataLoader, as
torchvision's do. Each epoch repeats the augmentation of the first one, and every seed gives the
same: a second run with another seed has the same random numbers. Python's and numpy's generators
are right in the same workers; in 2.4.0 numpy repeats, too.

Root cause: Lightning seeds torch in a worker with 64 bits that it draws from the seed. Their upper
half has the base seed, which changes in each epoch. Their lower half depends only on the numbers of
the worker and of the rank, and torch's generator on a CPU takes the lower half alone. The fix mixes
both halves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.bugs import api

GENERATORS = ("torch", "python", "numpy")
DRAWS = {name: api.many(api.SIZE) for name in GENERATORS}


def plan(at: api.Position) -> api.Plan:
    """What each generator drew for a rank's rows in each epoch, with two seeds."""
    epochs = api.each(at.params.epochs)
    return {"epoch": api.Kind(DRAWS, epochs), "reseeded": api.Kind(DRAWS, epochs)}


def run(ctx: api.Context) -> None:
    """Fit some epochs of rows that are random numbers, with two seeds."""
    from scenarios.pytorch_lightning.pl_worker_seed import training

    for kind, seed in (("epoch", ctx.seed + 1), ("reseeded", ctx.seed + 1001)):
        training.fit(ctx, kind, seed)


def draws(records: api.Records, name: str) -> list[list[Sequence[float]]]:
    """The numbers of a generator on each rank, in the epochs of both seeds."""
    both = [records.of(kind) for kind in ("epoch", "reseeded")]
    return [[one[name] for of in both for one in of if one["rank"] == r] for r in records.ranks]


def detect(records: api.Records) -> api.Finding | None:
    """On each rank torch drew the same numbers in all epochs with both seeds, and the ranks drew
    different ones. Python drew other numbers in each epoch and with each seed. So did numpy, or it
    repeats as torch does: 2.4.0 seeds both alike."""
    different = {
        name: [len(set(map(tuple, rank))) for rank in draws(records, name)] for name in GENERATORS
    }
    expected = 2 * records.params.epochs
    names = [name for name, counts in different.items() if min(counts) < expected]
    if not names:
        return None
    firsts = {tuple(rank[0]) for rank in draws(records, "torch")}
    return api.Finding(
        "\n".join(
            f"{name}: {', '.join(map(str, counts))} different epochs of {expected} on the ranks"
            for name, counts in different.items()
        ),
        step=2,
        ranks=records.ranks,
        magnitude=1 - min(map(min, different.values())) / expected,
        unit="of the epochs repeat random numbers",
        clock="epoch",
        documented=names in (["torch"], ["torch", "numpy"])
        and {count for name in names for count in different[name]} == {1}
        and len(firsts) == len(records.ranks),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Within an epoch all numbers differ, also between the ranks."""
    numbers = [number for rank in draws(records, "torch") for number in rank[0]]
    return {"two rows of an epoch have the same random number": len(set(numbers)) < len(numbers)}


def _counts(records: api.Records) -> Iterator[tuple[str, float]]:
    for name in GENERATORS:
        yield name, min(len(set(map(tuple, rank))) for rank in draws(records, name))


picture = api.bars(
    "Different epochs by generator",
    "with the bug torch's generator repeats one epoch; otherwise each epoch differs",
    _counts,
    "epochs",
)
