"""Each owner of a tied embedding steps with a gradient that misses one replica, each another one.

In a pipeline with tied embeddings the first stage's word embeddings and the last stage's output
layer are two copies of one weight: both must be updated with the mean gradient of all replicas of
both stages. With the distributed optimizer Megatron-LM gave every owner the sum of only three out
of four, not the same three on the two stages, so the tied copies parted.

Reported in May 2024 for models such as GPT-2. Nothing failed and nothing showed: the loss went
down, the replicas agreed. The two copies simply stopped being one weight. What that does to a
training is told by the scenario ``tied_embedding_training``.

Root cause: the reduce-scatter over the data-parallel replicas leaves a valid sum in each rank's own
shard of a bucket alone. Parameters lie in the buffer in reverse order, so on the first stage the
embedding comes last (data-parallel rank 1 owns it) and on the last stage the output layer comes
first (rank 0 does). The all-reduce over the two stages, which follows, pairs ranks of the same
data-parallel index: it adds a reduced shard to one that is not. The fix gives the tied weight a
bucket of its own, so that both stages cut it at the same places; the order stayed.

megatron-core 0.4.0 and 0.5.0 were published with the bug, so there is nothing to put back. What the
reporter proposed, to all-reduce first, is tried here too: it fails as soon as the reduce-scatter
overlaps with the backward pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records import Records
from harness.spec import Defect, Finding, Outcome, Scenario, Variant

if TYPE_CHECKING:
    import libcst as cst

    from harness.rank import Context

BEFORE, SCATTERED, SUMMED = "before", "after reduce-scatter", "after embedding all-reduce"

TABLES = {
    "buggy": {
        BEFORE: ("g0", "g1", "g2", "g3"),
        SCATTERED: ("g0/2", "(g0+g1)/2 own", "(g2+g3)/2 own", "g3/2"),
        SUMMED: (
            "g0/2+(g2+g3)/2", "(g0+g1)/2+g3/2 own", "g0/2+(g2+g3)/2 own", "(g0+g1)/2+g3/2"
        ),
    },
    "control": {
        BEFORE: ("g0", "g1", "g2", "g3"),
        SCATTERED: ("(g0+g1)/2 own", "(g0+g1)/2 own", "(g2+g3)/2 own", "(g2+g3)/2 own"),
        SUMMED: ("(g0+g1+g2+g3)/2 own",) * 4,
    },
}  # fmt: skip
"""What the cells must hold, rank by rank: the report's tables, of a buffer that is scaled whole."""

OVERLAPPING = 0.25
"""Seconds that a backward pass goes on after the embedding's gradient is there."""


@dataclass
class Params:
    """The knobs; the defaults are those of the tables in docs/scenarios/tied_embedding_order.md."""

    distributed_optimizer: bool = True
    """Reduce-scatter the gradients over the replicas; else all-reduce them."""
    overlap_grad_reduce: bool = False
    """Do so while the backward pass still runs, from its hooks."""


def embedding_first(
    function: cst.FunctionDef,
) -> Iterator[tuple[cst.CSTNode, cst.FunctionDef]]:
    """Move the loop that finishes the reduce-scatter behind the all-reduce of the embedding."""
    import libcst as cst
    import libcst.matchers as m

    def calls(statement: cst.CSTNode, func: Any) -> bool:
        return bool(m.findall(statement, m.Call(func=func)))

    body = list(function.body.body)
    finish = m.Attribute(attr=m.Name("finish_grad_sync"))
    loops = [s for s in body if isinstance(s, cst.For) and calls(s, finish)]
    sums = [s for s in body if calls(s, m.Name("_allreduce_embedding_grads"))]
    if len(loops) == len(sums) == 1:
        body.remove(loops[0])
        body.insert(body.index(sums[0]) + 1, loops[0])
        yield function, function.with_changes(body=function.body.with_changes(body=body))


ORDER_FIX = Defect(
    name="embedding_first",
    upstream="megatron-core",
    file="megatron/core/distributed/finalize_model_grads.py",
    scope="finalize_model_grads",
    edit=embedding_first,
    about="all-reduces the embedding before the reduce-scatter, as the report proposes: no fix, "
    "as soon as the reduce-scatter leaves from the backward hooks",
)

SCENARIO = Scenario(
    title="the owners of a tied embedding step with a gradient that misses a replica, on each "
    "pipeline stage another one",
    report=(
        "[BUG] Wrong embedding gradients with distributed optimizer and shared embedding",
        "https://github.com/NVIDIA/Megatron-LM/issues/844",
    ),
    fix="https://github.com/NVIDIA/Megatron-LM/commit/daf0006737 (megatron-core 0.6.0)",
    symptom="after the all-reduce, the embedding's gradient on rank 1 is (g0+g1)/2 plus g3's part, "
    "on rank 2 (g2+g3)/2 plus g0's, where both should be (g0+g1+g2+g3)/2",
    trigger="the distributed optimizer, an embedding tied over pipeline stages, and data "
    "parallelism",
    remedy="use megatron-core 0.6.0 or later",
    pins={"megatron-core": "0.5.0"},
    date="2024-12-15",
    ranks=4,
    variants={
        "buggy": Variant("megatron-core 0.5.0 as published", Outcome.SYMPTOM),
        "fixed": Variant(
            "megatron-core 0.6.0: the tied weight has a bucket of its own", Outcome.CLEAN,
            pins={"megatron-core": "0.6.0"},
        ),
        "control": Variant(
            "0.5.0 without the distributed optimizer: whole gradients, nothing to cut",
            Outcome.CLEAN, params={"distributed_optimizer": False}, triggers=False,
        ),
        "order_fix": Variant(
            "0.5.0 with the reporter's order: right, while nothing overlaps", Outcome.CLEAN,
            (ORDER_FIX,),
        ),
        "order_fix_overlap": Variant(
            "the same with overlap_grad_reduce: the reduce-scatter has left before",
            Outcome.SYMPTOM, (ORDER_FIX,), params={"overlap_grad_reduce": True},
        ),
        "fixed_overlap": Variant(
            "megatron-core 0.6.0 with overlap_grad_reduce: a bucket of its own holds here too",
            Outcome.CLEAN, params={"overlap_grad_reduce": True}, pins={"megatron-core": "0.6.0"},
        ),
        "later": Variant(
            "megatron-core 0.16.1, two years later: the same buckets, the same order",
            Outcome.CLEAN, pins={"megatron-core": "0.16.1"},
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Give each rank a gradient of its own, and follow it through upstream's reductions."""
    import torch.distributed as dist

    from scenarios.workloads import tied_stages as tied

    with ctx.phase("init"):
        tied.connect(ctx)
        sharded = ctx.params.distributed_optimizer
        module = tied.stage(ctx, tied.Shape())
        ddp = tied.data_parallel(module, sharded=sharded, overlap=ctx.params.overlap_grad_reduce)
        place = tied.layout(ddp, sharded)
        ctx.record(
            "layout", sharded=sharded, buffer=place.buffer, bucket=place.bucket, owned=place.owned
        )
    with ctx.phase("reduce"):
        _reduce(ctx, ddp, place.owned)
    with ctx.phase("check"):
        gradients = _gathered(tied.tied_weight(ddp).main_grad, tied.embedding_group())
        sums = _gathered(tied.tied_weight(ddp).main_grad.sum(), dist.group.WORLD)
        ctx.record(
            "compared",
            in_embedding_group=float((gradients[0] - gradients[-1]).abs().max()),
            sums=[float(s) for s in sums],
        )


def _reduce(ctx: Context, ddp: Any, owned: tuple[int, int]) -> None:
    """One backward pass and finalize_model_grads; the cells before, between and after."""
    from importlib import import_module

    from scenarios.workloads import tied_stages as tied

    finalize = import_module("megatron.core.distributed.finalize_model_grads")
    gradient = tied.tied_weight(ddp).main_grad

    def snapshot(when: str) -> None:
        ctx.record("cell", 1, when=when, pieces=_pieces(gradient, owned))

    with ddp.no_sync():  # for the first table: with overlap, the next one is reduced at once
        _one_hot(ctx, ddp).backward()
    snapshot(BEFORE)
    tied.zero_gradients(ddp)
    _one_hot(ctx, ddp).backward()
    if ctx.params.overlap_grad_reduce:
        time.sleep(OVERLAPPING)
    _then(ddp, "finish_grad_sync", lambda: snapshot(SCATTERED))
    _then(finalize, "_allreduce_word_embedding_grads", lambda: snapshot(SUMMED))
    finalize.finalize_model_grads([ddp])


def _one_hot(ctx: Context, ddp: Any) -> Any:
    """A loss whose gradient is 0 but in the tied weight's column of this rank's number.

    There it is 2 to the power of the rank, so that sums over it tell the ranks apart, too. The
    embedding is looked up, or the logits are made, by upstream's own layers.
    """
    import torch

    module = ddp.module
    vocabulary, hidden = module.shared_embedding_or_output_weight().shape
    one_hot = torch.zeros(hidden, device=ctx.device)
    one_hot[ctx.rank] = 2**ctx.rank
    if module.pre_process:
        every = torch.arange(vocabulary, device=ctx.device)[None]
        loss = (module.embedding.word_embeddings(every) * one_hot).sum()
    else:
        loss = module.output_layer(one_hot[None, None])[0].sum()
    return loss + sum(weight.sum() for weight in module.linear)


def _then(owner: Any, name: str, look: Callable[[], None]) -> None:
    """Have a look after each call of one of upstream's functions."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        look()
        return answer

    setattr(owner, name, call)


def _pieces(gradient: Any, owned: tuple[int, int]) -> list[dict[str, Any]]:
    """The rows of the gradient, equal ones in one piece, owned and not owned ones apart.

    A row is told by the coefficients of g0 to g3; what follows belongs to nobody, and is 0.
    """
    rows, width = gradient.tolist(), gradient.shape[1]
    rows = [[value / 2**column for column, value in enumerate(row)] for row in rows]
    assert not any(edge % width for edge in owned), f"a row is cut: {owned}"
    first, last = owned[0] // width, owned[1] // width
    pieces: list[dict[str, Any]] = []
    for number, row in enumerate(rows):
        found = {"owned": first <= number < last, "row": row}
        if pieces and {**pieces[-1], "rows": 0} == {**found, "rows": 0}:
            pieces[-1]["rows"] += 1
        else:
            pieces.append({**found, "rows": 1})
    return pieces


def _gathered(tensor: Any, group: Any) -> list[Any]:
    import torch
    import torch.distributed as dist

    copies = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(copies, tensor.contiguous(), group=group)
    return copies


def detect(records: Records) -> Finding | None:
    """An owner's gradient is not the mean over the replicas, summed over the stages."""
    if not all(records.of("cell", rank) for rank in records.ranks):
        return None
    wrong = {
        rank: row
        for rank in records.ranks
        for row in _owned(_last(records, rank))
        if row != _expected(records, row)
    }
    if not wrong:
        return None
    whole = _expected(records, next(iter(wrong.values())))
    halves = all(c in (0, w) for row in wrong.values() for c, w in zip(row, whole, strict=True))
    parted = len({rank // 2 for rank in wrong}) == 2 and len(set(map(tuple, wrong.values()))) > 1
    lines = [
        *_told(records),
        *(f"rank {rank} steps with {_sum(row)}: it misses {_missed(row)}"
          for rank, row in wrong.items()),
        f"both should have {_sum(whole)}",
    ]  # fmt: skip
    return Finding(
        message="\n".join(lines),
        step=1,
        parameters=("embedding.word_embeddings.weight", "output_layer.weight"),
        ranks=tuple(wrong),
        magnitude=max(abs(c - w) for r in wrong.values() for c, w in zip(r, whole, strict=True)),
        documented=halves and parted,
    )


def _expected(records: Records, row: Sequence[float]) -> list[float]:
    """(g0+g1+g2+g3)/2: the mean over the two replicas of each stage, summed over the stages."""
    ranks = len(records.ranks)
    return [0.5] * ranks + [0.0] * (len(row) - ranks)


def _cells(records: Records, rank: int) -> dict[str, list[dict[str, Any]]]:
    """A rank's cell in every table, in the order in which they came about."""
    return {record["when"]: record["pieces"] for record in records.of("cell", rank)}


def _last(records: Records, rank: int) -> list[dict[str, Any]]:
    return list(_cells(records, rank).values())[-1]


def _owned(pieces: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    return [piece["row"] for piece in pieces if piece["owned"]]


def _told(records: Records) -> list[str]:
    """The tables as the report prints them: a line for a stage, a column for a replica."""
    lines = []
    for when in _cells(records, 0):
        cells = [_text(when, _cells(records, rank)[when]) for rank in records.ranks]
        lines += [f"{when}:", *(f"  pp{p}: {' | '.join(cells[2 * p : 2 * p + 2])}" for p in (0, 1))]
    return lines


def _text(when: str, pieces: Sequence[Mapping[str, Any]]) -> str:
    """A cell in the words of the report; once reduced, ``own`` is what this rank's optimizer uses.

    Where a rank owns a part of its copy only, that part comes first.
    """
    own = "" if when == BEFORE else " own"
    pieces = sorted(pieces, key=lambda piece: not piece["owned"])
    parts = [_sum(piece["row"]) + (own if piece["owned"] else "") for piece in pieces]
    return "; ".join(dict.fromkeys(parts))


def _sum(row: Sequence[float]) -> str:
    """The coefficients of a row as a sum: (g0+g1)/2+g3/2, a stage's terms together."""
    if not any(row):
        return "0"
    stages = [row[:4]] if len(set(row[:4])) == 1 else [row[:2], row[2:4]]
    terms, first = [], 0
    for stage in stages:
        for value in dict.fromkeys(c for c in stage if c):
            names = [f"g{first + n}" for n, c in enumerate(stage) if c == value]
            terms.append(_scaled(names, value))
        first += len(stage)
    return "+".join(terms + [f"{c:g} of nobody's" for c in row[4:] if c])


def _scaled(names: Sequence[str], value: float) -> str:
    inner = "+".join(names)
    if value == 1:
        return inner
    inner = f"({inner})" if len(names) > 1 else inner
    return f"{inner}/2" if value == 0.5 else f"{value:g}*{inner}"


def _missed(row: Sequence[float]) -> str:
    return ", ".join(f"g{n}" for n, c in enumerate(row[:4]) if c != 0.5) or "nobody"


def exercised(records: Records) -> str | None:
    """Four different gradients; copies at different places of their buffers, cut among replicas."""
    cells = {rank: _cells(records, rank) for rank in records.ranks}
    if not all(BEFORE in c and SUMMED in c for c in cells.values()):
        return None
    rows = {_only(cell[BEFORE]) for cell in cells.values()}
    if len(rows) < len(records.ranks) or not all(map(any, rows)):
        return None
    if not copies_are_cut(records):
        return None
    places = " and ".join(f"at {records.of('layout', rank)[0]['buffer']}" for rank in (0, 2))
    return "\n".join(
        [
            f"all {len(rows)} gradients differed; the copies lay {places} of their buffers, and "
            "the reduce-scatter cut them among the replicas",
            *_told(records),
        ]
    )


def _only(pieces: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    """The row that all rows of a cell are equal to; nothing if there is no such row."""
    rows = {tuple(piece["row"]) for piece in pieces}
    return rows.pop() if len(rows) == 1 else ()


def copies_are_cut(records: Records) -> bool:
    """Whether the stages hold their copies at different places of their buffers, and the owners of
    each have one copy together: only so can a reduced and an unreduced part meet."""
    layouts = records.of("layout")
    if len(layouts) != 4:
        return False
    sizes = [told["buffer"][1] - told["buffer"][0] for told in layouts]
    owned = [told["owned"][1] - told["owned"][0] for told in layouts]
    per_stage = [sum(owned[:2]), sum(owned[2:])]  # with whole gradients each rank owns a copy
    places = {tuple(told["buffer"]) for told in layouts}
    sharded = all(told["sharded"] for told in layouts)
    return sharded and len(places) == 2 and per_stage == [sizes[0], sizes[-1]]


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What misses this bug, or sees it everywhere, and whether it fired."""
    compared = records.of("compared")
    sums = compared[0]["sums"] if compared else [0.0] * 4
    return {
        "the whole main_grad differs within the embedding group": any(
            c["in_embedding_group"] for c in compared
        ),
        "the sums of main_grad on ranks 1 and 2 differ (the report's own check)": sums[1]
        != sums[2],
    }


def agree(trials: Mapping[str, Records]) -> Iterator[str]:
    """Every cell must be what is documented, where it is."""
    for name, tables in TABLES.items():
        if name not in trials:
            continue
        cells = {rank: _cells(trials[name], rank) for rank in trials[name].ranks}
        for when, expected in tables.items():
            for rank, cell in enumerate(expected):
                found = _text(when, cells[rank].get(when, ()))
                if found != cell:
                    yield f"{name}, {when}: rank {rank} holds {found}, where {cell} is documented"
