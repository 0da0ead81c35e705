"""FSDP2 with PEFT saves only rank 0's part of each adapter weight: all other parts are lost.

This affects users who train a LoRA adapter with FSDP2 and save complete state dicts
(``FULL_STATE_DICT``). transformers' Trainer saves in this way. The checkpoint has a tensor for each
adapter weight, and each reports its full shape, but only rank 0's rows are in the file. After a
resume every other rank has the values of a new adapter: on two ranks half of the adapter is lost,
on eight ranks 7/8.

Root cause: ``save_fsdp_model(..., adapter_only=True)`` takes peft's state dict, whose values are
DTensors, and lets rank 0 write them without collecting the other ranks' parts. When loading, the
other ranks get an empty state dict, and nothing is broadcast. The fix collects complete tensors
before it writes, and distributes them after it has read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from harness.bugs import api

FULL, SHARDED = "FULL_STATE_DICT", "SHARDED_STATE_DICT"
VALUES = api.by_name(api.many(api.NUMBER, least=1), least=1)
SHAPES = api.many(api.many(api.COUNT))


def plan(at: api.Position) -> api.Plan:
    """This rank's part of the adapter: before the save, in a new adapter, and after the load."""
    if at.launch == "save":
        return {"saved": api.Kind({"values": VALUES, "shapes": api.alike(SHAPES)})}
    return {
        "loaded": api.Kind({"fresh": VALUES, "values": VALUES, "peft": api.FLAG, "file": SHAPES})
    }


def run(ctx: api.Context) -> None:
    """Train an adapter and save it as the Trainer does; load it into new processes."""
    from scenarios.accelerate.fsdp2_adapter_shards import adapter

    adapter.saved(ctx) if ctx.launch == "save" else adapter.loaded(ctx)


def _lost(records: api.Records) -> Mapping[int, tuple[int, int, int]]:
    """By rank: how many values the load did not restore, how many of these equal a new adapter's,
    and how many values the adapter has there."""
    counts = {}
    for rank in records.ranks:
        (saved,), (loaded,) = records.of("saved", rank), records.of("loaded", rank)
        rows = [
            (was, is_, new)
            for name in saved["values"]
            for was, is_, new in zip(
                saved["values"][name], loaded["values"][name], loaded["fresh"][name], strict=True
            )
        ]
        lost = [(is_, new) for was, is_, new in rows if was != is_]
        counts[rank] = len(lost), sum(is_ == new for is_, new in lost), len(rows)
    return counts


def detect(records: api.Records) -> api.Finding | None:
    """After the load, every rank but rank 0 has the values of a new adapter, and rank 0 has those
    that were saved."""
    lost = _lost(records)
    faults = {rank: counts for rank, counts in lost.items() if counts[0]}
    if not faults:
        return None
    total = sum(count for *_, count in lost.values())
    return api.Finding(
        "\n".join(
            f"rank {rank}: {many} of {count} values of its part of the adapter are not those that "
            f"were saved, {new} are as in a new adapter"
            for rank, (many, new, count) in faults.items()
        ),
        step=records.params.steps,
        ranks=tuple(faults),
        magnitude=sum(many for many, *_ in faults.values()) / total,
        unit="of the adapter's values lost",
        documented=set(faults) == set(records.ranks) - {0}
        and all(many == new == count for many, new, count in faults.values()),
    )


def exercised(records: api.Records) -> api.Exercise:
    """A complete state dict of an adapter that training had moved was saved, and each rank had a
    part of it."""
    kind = records.params.state_dict
    saved, loaded = records.of("saved"), records.of("loaded")
    is_trained = all(
        was["values"][name] != new["fresh"][name]
        for was, new in zip(saved, loaded, strict=True)
        for name in was["values"]
    )
    sizes = [sum(map(len, one["values"].values())) for one in saved]
    whole = sum(map(math.prod, saved[0]["shapes"]))
    parted = len(sizes) > 1 and all(sizes) and sum(sizes) == whole
    text = f"{kind} of an adapter; the ranks have {sizes} of its {whole} values"
    peft = all(one["peft"] for one in loaded)
    return api.Exercise.needs(
        is_trained and parted and peft, f"not a trained, sharded adapter: {text}"
    ) & (api.Exercise.of(kind == FULL, text))


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The file has each weight, and each claims its full shape."""
    shapes, file = records.of("saved")[0]["shapes"], records.of("loaded")[0]["file"]
    lacks = bool(file) and file != shapes
    return {"a weight is missing in the checkpoint, or has another shape": lacks}


def _parts(records: api.Records) -> Iterator[tuple[int, str, str]]:
    for was, new in zip(records.of("saved"), records.of("loaded"), strict=True):
        for name, values in was["values"].items():
            yield was["rank"], name, "saved" if new["values"][name] == values else "lost"


picture = api.grid(
    "Which parts of the adapter a load restored",
    "with the bug only rank 0 has the values that were saved",
    _parts,
    x="rank",
    y="weight",
    value="values",
    wrong=("lost",),
)
