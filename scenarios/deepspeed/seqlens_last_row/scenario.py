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
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, rows

TOKENS = 20
"""The most tokens of a batch."""
LONGEST = 9
"""The greatest length of a row."""


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


def _read(lengths: list[int], params: Any, seed: int) -> Iterator[int]:
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
