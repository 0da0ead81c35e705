"""Who saw which sample? Over all ranks an epoch is the dataset, each sample once, in a new order.

Records ``epoch`` have the samples that a rank saw, in order (``seen``), how many there are
(``samples``), how many of them are in a ``batch``, the ``order`` of all of them that the rank drew
its share from, and the seed that its generator had; their step is the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from harness.facts.plan import Kind, Plan, each
from harness.facts.shapes import COUNT, WHOLE, exactly, many
from harness.pictures import Grid, Picture
from harness.spec import Context, Exercise, Finding, Record, Records, Trials

UNIT = "of all samples seen by nobody"


_ROWS = many(COUNT)


def plan(samples: int, batch: int, epochs: int) -> Plan:
    """What ``watch`` records of so many epochs."""
    told = {"samples": exactly(samples), "batch": exactly(batch), "order": _ROWS}
    return {"epoch": Kind({**told, "seen": _ROWS, "seed": WHOLE}, each(epochs))}


def watch(ctx: Context, loader: Any, samples: int, batch: int, epochs: int) -> None:
    """Go through a loader of integers, epoch by epoch, and write down which of them came.

    ``loader.batch_sampler`` shards another one, ``batch_sampler``, which asks a ``sampler``.
    """
    import torch

    order = _noted(loader.batch_sampler.batch_sampler.sampler)
    for epoch in range(1, epochs + 1):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch - 1)
        seed = torch.initial_seed()
        seen = [int(sample) for batch in loader for sample in batch]
        ctx.record(
            "epoch", epoch, samples=samples, batch=batch, seen=seen, order=list(order), seed=seed
        )


def _noted(sampler: Any) -> list[int]:
    """The order that a sampler has drawn last; it goes on as it is, and remains of its class."""
    kind, order = type(sampler), list[int]()

    def draw(self: Any) -> Iterator[int]:
        order.clear()
        for index in kind.__iter__(self):
            order.append(int(index))
            yield index

    sampler.__class__ = type(kind.__name__, (kind,), {"__iter__": draw})
    return order


def _epochs(records: Records) -> Mapping[int, Sequence[Sequence[int]]]:
    """By epoch, what each rank saw."""
    seen: dict[int, list[list[int]]] = {}
    for record in records.of("epoch"):
        seen.setdefault(record["step"], []).append(record["seen"])
    return seen


def incomplete(records: Records) -> Finding | None:
    """In some epoch the union over the ranks is not the dataset, though its size is right."""
    total = max((record["samples"] for record in records.of("epoch")), default=0)
    drawn = {e: [s for seen in ranks for s in seen] for e, ranks in _epochs(records).items()}
    wrong = {e: seen for e, seen in drawn.items() if set(seen) != set(range(total))}
    if not wrong:
        return None
    lines = [
        f"epoch {epoch}: {len(set(seen))} of {total} samples seen, in {len(seen)} draws: "
        f"{total - len(set(seen))} never, {len(seen) - len(set(seen))} a second time"
        for epoch, seen in wrong.items()
    ]
    return Finding(
        message="\n".join(lines),
        step=min(wrong),
        ranks=records.ranks,
        magnitude=max(1 - len(set(seen)) / total for seen in wrong.values()),
        unit=UNIT,
        clock="epoch",
        documented=all(len(seen) == total for seen in wrong.values()),
    )


def misdrawn(records: Records) -> Finding | None:
    """A rank saw other samples than its share of the order that it drew, or drew no whole one.

    The bug is that the orders are unlike: whatever else is wrong is not documented. Of an order's
    batches a rank has each that its number and the number of ranks say. An order that comes again
    in the next epoch shares out whole, and is no finding: accelerate 0.24.1 draws so.
    """
    count = len(records.ranks)
    lines = [(one, line) for one in records.of("epoch") for line in _misdrawn(one, count)]
    if not lines:
        return None
    return Finding(
        "\n".join(line for _, line in lines),
        min(one["step"] for one, _ in lines),
        ranks=tuple(sorted({one["rank"] for one, _ in lines})),
        clock="epoch",
        documented=False,
    )


def _misdrawn(one: Record, ranks: int) -> Iterator[str]:
    where, order, size = f"epoch {one['step']}, rank {one['rank']}:", one["order"], one["batch"]
    if sorted(order) != list(range(one["samples"])):
        yield f"{where} its order of {len(order)} is not one of all {one['samples']} samples"
    batches = [order[at : at + size] for at in range(0, len(order), size)]
    share = [sample for batch in batches[one["rank"] :: ranks] for sample in batch]
    if one["seen"] != share:
        apart = sum(a != b for a, b in zip_longest(one["seen"], share))
        yield f"{where} {apart} of the {len(share)} samples of its share are others"


def shuffled(records: Records) -> Exercise:
    """Every rank drew every epoch in another order than the dataset's."""
    parts = [seen for ranks in _epochs(records).values() for seen in ranks]
    sorted_ = sum(list(seen) == sorted(seen) for seen in parts)
    return Exercise.of(
        bool(parts) and not sorted_,
        f"{len(_epochs(records))} epochs on {len(records.ranks)} ranks were shuffled",
        f"{sorted_} of {len(parts)} epochs of a rank came in the order of the dataset",
    )


def states_apart(records: Records) -> Exercise:
    """The ranks' generators were in different states."""
    seeds = sorted({record["seed"] for record in records.of("epoch")})
    return Exercise.of(
        len(seeds) >= len(records.ranks) > 1,
        f"the ranks were seeded unlike, with {', '.join(map(str, seeds))}",
        f"all ranks were seeded with {', '.join(map(str, seeds)) or 'nothing'}",
    )


def blind(records: Records) -> dict[str, bool]:
    """What counts samples, or looks at one rank or one epoch, and whether it fired."""
    epochs = list(_epochs(records).values())
    total = max((record["samples"] for record in records.of("epoch")), default=0)
    return {
        "the number of samples drawn is not the dataset's": any(
            sum(map(len, ranks)) != total for ranks in epochs
        ),
        "a rank sees a sample twice": any(len(set(s)) < len(s) for r in epochs for s in r),
        "an epoch repeats the order of another": any(
            one == other for n, one in enumerate(epochs) for other in epochs[n + 1 :]
        ),
    }


def seen_by(trials: Trials) -> Iterator[Picture]:
    """A picture of which ranks saw which sample, epoch by epoch."""
    fields: list[tuple[str, int, int, str]] = []
    for variant, records in trials.items():
        for number, ranks in _epochs(records).items():
            for sample in range(records.of("epoch")[0]["samples"]):
                seen = [
                    f"rank {rank}" for rank, one in enumerate(ranks) for s in one if s == sample
                ]
                fields.append((variant, sample, number, " and ".join(seen) or "nobody"))
    yield Grid(
        "Who saw which sample",
        "with the bug some samples are seen by two ranks, others by nobody",
        fields,
        "sample",
        "epoch",
        "seen by",
        wrong=("nobody",),
    )
