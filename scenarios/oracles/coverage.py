"""Who saw which sample? Over all ranks an epoch is the dataset, each sample once, in a new order.

Records ``epoch`` have the samples that a rank saw, in order (``seen``), how many there are
(``samples``) and the seed that its generator had; their step is the epoch. A record ``resume`` has
the rows ``before`` a checkpoint, those ``after`` it, and the ``whole`` of a run that goes on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.plan import Kind, Plan, each
from harness.shapes import COUNT, TEXT, WHOLE, many
from harness.spec import Context, Exercise, Finding, Record, Records

UNIT = "of all samples seen by nobody"


_ROWS = many(COUNT)
RESUME = Kind({"before": _ROWS, "after": _ROWS, "whole": _ROWS, "transform": TEXT})


def plan(epochs: int) -> Plan:
    """What ``watch`` records of so many epochs."""
    return {"epoch": Kind({"samples": COUNT, "seen": _ROWS, "seed": WHOLE}, each(epochs))}


def watch(ctx: Context, loader: Iterable[Any], samples: int, epochs: int) -> None:
    """Go through a loader of integers, epoch by epoch, and write down which of them came."""
    import torch

    for epoch in range(1, epochs + 1):
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch - 1)
        seed = torch.initial_seed()
        seen = [int(sample) for batch in loader for sample in batch]
        ctx.record("epoch", epoch, samples=samples, seen=seen, seed=seed)


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


def skipped(records: Records) -> Finding | None:
    """The rows before the checkpoint and after it are not those of a run that goes on."""
    seen = records.one("resume")
    if seen is None or seen["before"] + seen["after"] == seen["whole"]:
        return None
    never = sorted(set(seen["whole"]) - set(seen["before"]) - set(seen["after"]))
    twice = sorted(set(seen["before"]) & set(seen["after"]))
    return Finding(
        message=_told(seen, never, twice),
        step=len(seen["before"]),
        ranks=records.ranks,
        magnitude=len(never) / len(seen["whole"]),
        unit=UNIT,
        clock="row",
        documented=bool(never) and not twice,
    )


def _told(seen: Record, never: Sequence[int], twice: Sequence[int]) -> str:
    place, total = len(seen["before"]), len(seen["whole"])
    if not never:
        return (
            f"resumed after {place} of {total} rows: {len(twice)} are seen twice, or out of order"
        )
    came = seen["after"][0] if seen["after"] else "none"
    return (
        f"resumed after {place} of {total} rows: {len(never)} rows are never seen ({never[0]} to "
        f"{never[-1]}), {len(twice)} are seen twice; the next row that came is {came}, and not "
        f"{seen['whole'][place]}"
    )


def resumed(records: Records) -> Exercise:
    """It was resumed in the middle: rows had come, and rows were left."""
    seen = records.one("resume")
    if seen is None:
        return Exercise(False, "nothing was resumed")
    before, total = len(seen["before"]), len(seen["whole"])
    return Exercise.of(
        0 < before < total,
        f"it was resumed after {before} of {total} rows",
        f"it was resumed after {before} of {total} rows: not in the middle",
    )


def resume_blind(records: Records) -> dict[str, bool]:
    """What looks for rows that come twice, or for none at all, and whether it fired."""
    seen = records.of("resume")
    return {
        "a row comes twice": any(set(s["before"]) & set(s["after"]) for s in seen),
        "nothing comes after a resume": any(not s["after"] for s in seen),
    }
