"""Whose gradient is in which cell? A tied weight's gradient, followed through its reductions.

In the report's tables g0 to g3 are the ranks' own gradients, and every rank has a cell: the content
of its buffer. The owners of a copy should step with the mean over the replicas, summed over the
stages.

Each rank's gradient is 0 except in the column of its number, so any row of a cell shows how much of
g0 to g3 it contains, and in one column that all ranks share, which shows whether they were added
up. A record ``cell`` has the rows at a moment (``when``): equal rows in one piece, and owned rows
apart. A record ``rest`` has the gradients of the other weights that the rank owns (``owned``, the
values that occur), their ``dtypes``, and how far the copies themselves are ``apart``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.megatron_core._tied_layout import LAYOUT, RANKS, REPLICAS, different, misplaced

if TYPE_CHECKING:
    from torch import Tensor

SHARED = RANKS
"""The column in which every rank's gradient is not 0."""
BEFORE = "before"
"""The moment at which each rank's cell contains its own gradient."""
UNIT = "of a rank's gradient, half of which is right"

_PIECE = api.held(
    {"owned": api.FLAG, "row": api.many(api.NUMBER, least=RANKS + 1), "rows": api.COUNT}
)


def plan(moments: Sequence[str]) -> api.Plan:
    """Where the copy is, the content of a rank's cell at each moment, and the other weights."""
    # In any order: a fix may use another one.
    cell = api.Kind(
        {"when": api.one_of(*moments), "pieces": api.many(_PIECE, least=1)}, [1] * len(moments)
    )
    owned = api.by_name(api.many(api.NUMBER), least=1)
    others = {"owned": owned, "dtypes": api.many(api.LINE, least=1), "apart": api.SIZE}
    return {"layout": LAYOUT, "cell": cell, "rest": api.Kind(others)}


def scale(rank: int) -> float:
    """The gradient that a rank gives to each element of the other weights."""
    return 1.0 + rank


Piece = Mapping[str, Any]
"""Equal rows of a cell: whether they are ``owned``, one ``row``, and how many ``rows``."""


def one_hot(ctx: api.Context, width: int) -> Tensor:
    """The row that this rank's gradient is made of, [width].

    Its values are 2 to the power of the column, so that sums over all columns differ too.
    """
    import torch

    row = torch.zeros(width, device=ctx.device)
    for column in (ctx.rank, SHARED):
        row[column] = 2**column
    return row


def loss_with(module: Any, row: Tensor, scale: float) -> Tensor:
    """A loss whose gradient has ``row``, [hidden], in each row of the tied weight.

    Upstream's own layers look up the embedding or make the logits. Each element of a linear layer
    gets the gradient ``scale``, so that the layers take part in the reductions.
    """
    import torch

    if module.pre_process:
        vocabulary = module.shared_embedding_or_output_weight().shape[0]
        every = torch.arange(vocabulary, device=row.device)[None]
        loss = (module.embedding.word_embeddings(every) * row).sum()
    else:
        loss = module.output_layer(row[None, None])[0].sum()
    return loss + scale * sum(weight.sum() for weight in module.linear)


def record_others(ctx: api.Context, others: Mapping[str, Tensor], apart: float) -> None:
    """Record, by name, the parts of the other weights' gradients that this rank owns."""
    owned = {name: sorted(set(part.tolist())) for name, part in others.items()}
    dtypes = sorted({str(part.dtype).removeprefix("torch.") for part in others.values()})
    ctx.record("rest", owned=owned, dtypes=dtypes, apart=apart)


def snapshot(ctx: api.Context, when: str, gradient: Tensor, owned: tuple[int, int]) -> None:
    """Record what this rank's gradient, [rows, width], contains at a moment."""
    ctx.record("cell", 1, when=when, pieces=_pieces(gradient, owned))


def after(owner: Any, name: str, look: Callable[[], None]) -> None:
    """Call ``look`` after each call of a function of upstream, which itself does not change."""
    original = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        answer = original(*args, **kwargs)
        look()
        return answer

    setattr(owner, name, call)


def _pieces(gradient: Tensor, owned: tuple[int, int]) -> list[dict[str, Any]]:
    """The rows as coefficients of g0 to g3; the columns that follow are nobody's, and are 0."""
    width = gradient.shape[1]
    if any(edge % width for edge in owned):
        raise api.Inconclusive(f"a row is cut: {owned}")
    low, high = owned[0] // width, owned[1] // width
    pieces: list[dict[str, Any]] = []
    for number, values in enumerate(gradient.tolist()):
        row = [value / 2**column for column, value in enumerate(values)]
        piece = {"owned": low <= number < high, "row": row}
        if pieces and {**pieces[-1], "rows": 0} == {**piece, "rows": 0}:
            pieces[-1]["rows"] += 1
        else:
            pieces.append({**piece, "rows": 1})
    return pieces


def otherwise_wrong(records: api.Records, *, sharded: bool) -> api.Finding | None:
    """A finding, never documented, if anything else is wrong: then the cells prove nothing.

    The copies must begin equal. Each other weight's gradient must be the mean over the replicas, in
    fp32. ``sharded``: by a distributed optimizer.
    """
    lines = [line for one in records.of("rest") for line in _rest_wrong(one)]
    lines += [*_unstepped(records, sharded), *misplaced(records)]
    ranks = tuple(dict.fromkeys(rank for rank, _ in lines))
    return (
        api.Finding("\n".join(t for _, t in lines), 1, (), ranks, documented=False)
        if lines
        else None
    )


def _rest_wrong(record: Mapping[str, Any]) -> Iterator[tuple[int, str]]:
    rank = record["rank"]
    if record["apart"]:
        yield rank, f"rank {rank}: the copies are {record['apart']:.3g} apart before any step"
    if record["dtypes"] != ["float32"]:
        yield rank, f"rank {rank}: its gradients are {', '.join(record['dtypes'])}, and not float32"
    start = rank // REPLICAS * REPLICAS
    mean = sum(map(scale, range(start, start + REPLICAS))) / REPLICAS
    for name, values in record["owned"].items():
        if values not in ([mean], []):
            text = ", ".join(f"{value:g}" for value in values)
            yield rank, f"rank {rank} steps {name} with {text}, but its replicas' mean is {mean:g}"


def _unstepped(records: api.Records, sharded: bool) -> Iterator[tuple[int, str]]:
    """By rank, other weights of its stage that the rank does not name, or that nobody steps. One of
    the replicas must step them, and without a distributed optimizer each of them."""
    owned = {one["rank"]: one["owned"] for one in records.of("rest")}
    for rank, gradients in owned.items():
        stage = [owned[other] for other in owned if other // REPLICAS == rank // REPLICAS]
        for name in dict.fromkeys(name for parts in stage for name in parts):
            steps = any(parts.get(name) for parts in (stage if sharded else [gradients]))
            if name not in gradients or not steps:
                yield rank, f"rank {rank}: owned does not name {name}, or nobody steps it"


def incomplete(records: api.Records, copies: tuple[str, ...], summed: str) -> api.Finding | None:
    """An owner's gradient is not the mean over the replicas, summed over the stages.

    Documented if complete gradients of the other stage are missing, different ones on the two
    stages, although the copies were summed over the stages. ``copies`` are the names of the weight
    on the stages, ``summed`` is the moment after that sum.
    """
    cells = {rank: list(_cells(records, rank).values())[-1:] for rank in records.ranks}
    if not all(cells.values()):
        return None
    faults = [(n, row) for n, (cell,) in cells.items() for row in _owned(cell) if row != _mean(row)]
    if not faults:
        return None
    stages = {rank // REPLICAS for rank, _ in faults}
    differ = len({tuple(row) for _, row in faults}) > 1
    lines = [
        *(f"rank {rank} steps with {_sum(row)}{_missed(row)}" for rank, row in faults),
        f"every owner should step with {_sum(_mean(faults[0][1]))}; cells by stage and replica:",
        *_tables(records),
    ]
    return api.Finding(
        message="\n".join(lines),
        step=1,
        parameters=copies,
        ranks=tuple(dict.fromkeys(rank for rank, _ in faults)),
        magnitude=max(abs(share - 1 / REPLICAS) for _, row in faults for share in row[:RANKS]),
        unit=UNIT,
        documented=len(stages) > 1
        and differ
        and all(_misses_others(rank, row) for rank, row in faults)
        and all(_of_both(rank, records, summed) for rank in records.ranks),
    )


def _misses_others(rank: int, row: Sequence[float]) -> bool:
    """Whether a row is the sum of all gradients of its own stage and some complete ones of the
    other."""
    start = rank // REPLICAS * REPLICAS
    stage, mean = row[start : start + REPLICAS], 1 / REPLICAS
    whole = all(share in (0, mean) for share in row[:RANKS])
    return whole and _adds_up(row) and stage == [mean] * REPLICAS


def _of_both(rank: int, records: api.Records, when: str) -> bool:
    """Whether everything in a rank's cell at a moment has parts of both stages."""
    rows = [piece["row"] for piece in _cells(records, rank).get(when, ())]
    return bool(rows) and all(any(r[:REPLICAS]) and any(r[REPLICAS:RANKS]) for r in rows)


def _adds_up(row: Sequence[float]) -> bool:
    """Whether the column that all ranks share is the sum of their own; in a maximum it is not."""
    return row[SHARED] == sum(row[:RANKS]) and not any(row[SHARED + 1 :])


def _mean(row: Sequence[float]) -> list[float]:
    """(g0+g1+g2+g3)/2, as a row of the same length."""
    shares = [1 / REPLICAS] * RANKS
    return [*shares, sum(shares)] + [0.0] * (len(row) - RANKS - 1)


def _cells(records: api.Records, rank: int) -> dict[str, list[Piece]]:
    """The content of a rank's cell at each moment, in order."""
    return {record["when"]: record["pieces"] for record in records.of("cell", rank)}


def _owned(pieces: Sequence[Piece]) -> list[list[float]]:
    return [piece["row"] for piece in pieces if piece["owned"]]


def _tables(records: api.Records) -> Iterator[str]:
    """The tables as the report prints them: one line for each stage, one column for each
    replica."""
    for when in _cells(records, 0):
        cells = [_text(when, _cells(records, rank).get(when, ())) for rank in records.ranks]
        yield f"{when}:"
        for stage, start in enumerate(range(0, len(cells), REPLICAS)):
            yield f"  pp{stage}: {' | '.join(cells[start : start + REPLICAS])}"


def _text(when: str, pieces: Sequence[Piece]) -> str:
    """A cell in the words of the report, owned parts first.

    Before any reduction nothing is marked as owned, as in the report.
    """
    mark = "" if when == BEFORE else " own"
    pieces = sorted(pieces, key=lambda piece: not piece["owned"])
    parts = [_sum(piece["row"]) + (mark if piece["owned"] else "") for piece in pieces]
    return "; ".join(dict.fromkeys(parts))


def _sum(row: Sequence[float]) -> str:
    """The coefficients of a row as a sum, the terms of a stage together: (g0+g1)/2+g3/2."""
    if not any(row):
        return "0"
    whole = len(set(row[:RANKS])) == 1
    stages = [range(RANKS)] if whole else [range(REPLICAS), range(REPLICAS, RANKS)]
    terms = [
        _scaled([f"g{n}" for n in stage if row[n] == share], share)
        for stage in stages
        for share in dict.fromkeys(row[n] for n in stage if row[n])
    ]
    nobodys = [f"{share:g} of nobody's" for share in row[SHARED + 1 :] if share]
    return "+".join(terms + nobodys) + ("" if _adds_up(row) else ", not added up")


def _scaled(names: Sequence[str], share: float) -> str:
    inner = "+".join(names)
    if share == 1:
        return inner
    inner = f"({inner})" if len(names) > 1 else inner
    return f"{inner}/2" if share == 0.5 else f"{share:g}*{inner}"


def _missed(row: Sequence[float]) -> str:
    missed = [f"g{n}" for n, share in enumerate(row[:RANKS]) if not share]
    return f", which misses {' and '.join(missed)}" if missed else ""


def disagree(
    name: str, records: api.Records, documented: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """The cells of the variant ``name`` that differ from the documented ones."""
    for when, cells in documented.items():
        for rank, cell in enumerate(cells):
            text = _text(when, _cells(records, rank).get(when, ()))
            if text != cell:
                yield f"{name}, {when}: rank {rank} holds {text}, where {cell} is documented"


def followed(records: api.Records, moments: Sequence[str]) -> api.Exercise:
    """The ranks' gradients differed, and cells were recorded at each of the moments."""
    cells = [_cells(records, rank) for rank in records.ranks]
    lacking = [when for when in (BEFORE, *moments) if not all(when in c for c in cells)]
    if lacking or not cells:
        return api.Exercise(False, f"not every rank was seen {lacking[0] if lacking else BEFORE}")
    return api.Exercise.of(
        different([_only(each[BEFORE]) for each in cells]),
        f"all {len(cells)} ranks' own gradients differed",
        "the ranks' own gradients were not all different, or one was 0",
    )


def _only(pieces: Sequence[Piece]) -> tuple[float, ...]:
    """The row that all rows of a cell equal; empty if they differ."""
    rows = {tuple(piece["row"]) for piece in pieces}
    return rows.pop() if len(rows) == 1 else ()


def wholes(records: api.Records) -> dict[int, list[tuple[list[float], int]]]:
    """By rank, the complete gradient in its last cell: the values of rows, and how many equal rows
    follow one another."""
    by_rank: dict[int, list[tuple[list[float], int]]] = {}
    for rank in records.ranks:
        by_rank[rank] = []
        for piece in [p for cell in list(_cells(records, rank).values())[-1:] for p in cell]:
            row = [value * 2**column for column, value in enumerate(piece["row"])]
            count = by_rank[rank].pop()[1] if by_rank[rank] and by_rank[rank][-1][0] == row else 0
            by_rank[rank].append((row, count + piece["rows"]))
    return by_rank


def tables(trials: api.Trials, moments: Sequence[str]) -> Iterator[api.Picture]:
    """A picture of the report's tables: how much of each rank's gradient is in each rank's cell."""
    fields = [
        (f"{variant}: {when}", f"g{column}", f"rank {rank}", share)
        for variant in (api.BUGGY, api.FIXED)
        if variant in trials
        for when in moments
        for rank in trials[variant].ranks
        for piece in _main_piece(_cells(trials[variant], rank).get(when, ()))
        for column, share in enumerate(piece["row"][:RANKS])
    ]
    yield api.Grid(
        "Whose gradient is in whose buffer",
        "right is a half of all four in the cells that an owner steps with (ranks 1 and 2)",
        fields,
        "gradient of",
        "buffer of",
        "share",
    )


def _main_piece(pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The piece of a cell that its rank steps with, otherwise the first piece."""
    return [*(piece for piece in pieces if piece["owned"]), *pieces][:1]
