"""DeepSpeed's batches of variable size never have the last row of the data.

DeepSpeed packs rows into batches by their lengths, so that each batch has about as many tokens
(``dynamic_batching``). One row of each epoch is in no batch: the last one in the order that is
packed. If the order is that of the dataset, or that of the lengths, this is the same row in each
epoch. In the order of the lengths it is the longest row. No error is raised, and the row is not
among those that are too long, about which DeepSpeed warns.

Root cause: ``batch_by_seqlens`` tries ends of a batch with ``range(..., len(metrics), ...)``. The
end of a slice may be ``len(metrics)``, but ``range`` leaves out its own end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, rows

TOKENS = 20
"""The most tokens of a batch."""
LONGEST = 9
"""The greatest length of a row."""


@dataclass
class Params(api.Knobs):
    rows: int = api.knob(100, least=4, multiple=2, about="of the dataset")
    epochs: int = api.knob(3, least=1, about="passes over the dataset")
    order: str = api.knob(
        "random",
        choices=("random", "dataloader", "seqlen"),
        about="in which rows are packed; dataloader is that of the dataset",
    )
    packed: str = api.knob(
        "by_length",
        choices=("by_length", "in_pairs"),
        about="by DeepSpeed's batch_by_seqlens, or by hand in pairs",
    )


def one_further(function: Any) -> api.Edits:
    """The last end of a batch that is tried is the number of rows."""
    import libcst as cst
    import libcst.matchers as m

    length = m.Call(m.Name("len"), [m.Arg(m.Name("metrics"))])
    three = m.Call(m.Name("range"), [m.DoNotCare(), m.Arg(length), m.DoNotCare()])
    for call in m.findall(function, three):
        arguments = list(cst.ensure_type(call, cst.Call).args)
        arguments[1] = cst.Arg(cst.parse_expression("len(metrics) + 1"))
        yield call, call.with_changes(args=arguments)


REMEDY = api.Defect(
    upstream="deepspeed",
    file="deepspeed/runtime/data_pipeline/data_sampling/variable_batch_size_and_lr.py",
    scope="batch_by_seqlens",
    edit=one_further,
    about="our remedy, with the effect of upstream's pull request 8347: the last row is tried, too",
)

SCENARIO = api.Scenario(
    report=(
        "Include the last sample when packing variable-size batches",
        "https://github.com/deepspeedai/DeepSpeed/pull/8347",
    ),
    fix="https://github.com/deepspeedai/DeepSpeed/pull/8347 is in no release as of 0.19.8",
    symptom="the last sample of the dataset is never placed in a microbatch, in every epoch",
    trigger="batches of variable size, by dynamic_batching or batch_by_seqlens",
    remedy="put a row at the end that is a copy of another, in the order of lengths a longest one",
    pins={"deepspeed": "0.19.8"},
    absent=(
        api.Absent(
            "deepspeed<0.16.5",
            "batches of variable size came with 0.16.5",
            "https://github.com/deepspeedai/DeepSpeed/pull/7104",
        ),
    ),
    named_by=("reference: DATA.07",),
    harm="loses data",
    visibility="silent",
    settings={"code": api.by_code("DeepSpeed packs rows into batches of variable size")},
    files=("deepspeed/runtime/data_pipeline/data_sampling/variable_batch_size_and_lr.py",),
    ranks=1,
    variants={
        "buggy": api.expect_symptom(),
        "fixed": api.expect_clean(about="0.19.8 with our remedy", defects=(REMEDY,)),
        "control": api.control(
            "0.19.8 with batches that are made by hand", params={"packed": "in_pairs"}
        ),
        "in_order": api.expect_symptom(
            about="0.19.8, in the order of the dataset", params={"order": "dataloader"}
        ),
        "by_length": api.expect_symptom(
            about="0.19.8, in the order of the lengths", params={"order": "seqlen"}
        ),
    },
)


def last_never(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """In each epoch one row never comes, and all others come once. If rows are packed in the order
    of the dataset, it is the last one; otherwise it has at least the length of all others."""
    total, order = records.params.rows, records.params.order
    missing = [set(range(total)) - {*rows.together(e)} for e in rows.by_epoch(records).values()]
    lengths = _lengths(total)
    complete = {
        "random": set(range(total)),
        "dataloader": {total - 1},
        "seqlen": {row for row, length in enumerate(lengths) if length == max(lengths)},
    }[order]
    return epochs.units(faults) == {epochs.Unit.NEVER} and all(
        len(rows_) == 1 and rows_ <= complete for rows_ in missing
    )


oracle = epochs.Epochs(last_never, checks=(epochs.row_twice,))


def _lengths(total: int) -> list[int]:
    """The length of each row: none is too long for a batch."""
    return [1 + (7 * row) % LONGEST for row in range(total)]


def run(ctx: api.Context) -> None:
    """Pack the rows of each epoch, and read the batches with DeepSpeed's loader."""
    p, lengths = ctx.params, _lengths(ctx.params.rows)
    for epoch in api.each(p.epochs):
        rows_read = list(_read(lengths, p, ctx.seed + epoch))
        ctx.record("epoch", epoch, seen=rows_read)


def _read(lengths: list[int], params: Params, seed: int) -> Iterator[int]:
    from deepspeed.runtime.data_pipeline.data_sampling import variable_batch_size_and_lr as variable

    if params.packed == "in_pairs":
        batches = [(n, [2 * n, 2 * n + 1]) for n in range(len(lengths) // 2)]
        longest = [LONGEST] * len(batches)
    else:
        batches, _, longest = variable.batch_by_seqlens(
            lengths, TOKENS, sequence_picking_order=params.order, seed=seed
        )
    loader, _ = variable.dataloader_for_variable_batch_size(
        list(range(len(lengths))), batches, longest, dataloader_num_workers=0
    )
    for batch in loader:
        yield from map(int, batch)


def exercised(records: api.Records) -> api.Exercise:
    """DeepSpeed packed the rows."""
    packed = records.params.packed
    return api.Exercise.of(packed == "by_length", f"rows were packed {packed.replace('_', ' ')}")
