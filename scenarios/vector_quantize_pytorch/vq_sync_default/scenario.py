"""VectorQuantize does not synchronise its codebook between ranks unless it is told to.

The codebook of VectorQuantize is a moving average of the vectors that are quantized; it is updated
in each forward pass. With ``sync_codebook=True`` the sums go over all ranks. Up to 1.7.0 the
default was False, also in a distributed run. Each rank then has a codebook of its own rows, and the
same code means another vector on another rank. Under DDP, which copies the buffers of rank 0 before
each forward pass, the codebook sees the rows of rank 0 alone. The loss of each rank falls as it
should, and the checkpoint has the codebook of rank 0.

Root cause: the default of ``sync_codebook`` in ``VectorQuantize.__init__``. Since 1.7.1 it is None,
and then the codebook is synchronised if there are several ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.bugs import api

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-3
"""How far a codebook may be from another, as a part of its norm. Rounding moves it by 1e-6."""
DIM, CODES = 4, 8


def plan(at: api.Position) -> api.Plan:
    """How far the ranks' codebooks are from each other, and from the codebooks of one process."""
    facts = {"apart": api.alike(api.SIZE), "whole": api.SIZE, "own": api.SIZE}
    return {"step": api.Kind({**facts, "parted": api.alike(api.FLAG)}, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Quantize other rows on each rank, with the default of sync_codebook."""
    import torch.distributed as dist
    from vector_quantize_pytorch import VectorQuantize

    dist.init_process_group(ctx.lane.backend)
    options = {"sync_codebook": True} if ctx.params.sync_codebook else {}
    sizes = {"dim": DIM, "codebook_size": CODES}
    _train(ctx, partial(VectorQuantize, **sizes, **options))


def _train(ctx: api.Context, make: Callable[..., Any]) -> None:
    """Quantize each rank's own rows for some steps; ``make`` takes ``sync_codebook`` or nothing.

    ``whole`` is the distance to the codebook of one process with the rows of all ranks, ``own`` the
    distance to the codebook of one process with this rank's rows alone; both are parts of the other
    codebook's norm.
    """
    import torch
    import torch.distributed as dist

    torch.manual_seed(ctx.seed)
    trained = make().to(ctx.device).train()
    plain = make(sync_codebook=False).to(ctx.device).train()
    plain.load_state_dict(trained.state_dict())
    alone = {"whole": plain, "own": copy.deepcopy(plain)}
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    for step in api.each(ctx.params.steps):
        rows = torch.randn(ctx.world_size, ctx.params.rows, DIM, generator=generator)
        rows = (rows + torch.arange(ctx.world_size)[:, None, None]).to(ctx.device)
        trained(rows[ctx.rank : ctx.rank + 1])
        alone["whole"](rows.flatten(0, 1)[None])
        alone["own"](rows[ctx.rank : ctx.rank + 1])
        mine = trained.codebook.detach().contiguous()
        copies = [torch.empty_like(mine) for _ in range(ctx.world_size)]
        dist.all_gather(copies, mine)
        ctx.record(
            "step",
            step,
            apart=max(_distance(each, copies[0]) for each in copies),
            **{name: _distance(mine, one.codebook.detach()) for name, one in alone.items()},
            parted=not torch.equal(rows[0], rows[-1]),
        )


def _distance(codebook: Tensor, expected: Tensor) -> float:
    return float((codebook - expected).norm() / expected.norm())


def detect(records: api.Records) -> api.Finding | None:
    """Each rank has the codebook of its own rows alone, so that the ranks' codebooks differ."""
    steps = records.of("step")
    faults = [step for step in steps if max(step["whole"], step["apart"]) > TOLERANCE]
    if not faults:
        return None
    alone = all(step["own"] <= TOLERANCE for step in steps)
    start, end = faults[0], faults[-1]
    lines = [
        f"rank {start['rank']}, step {start['step']}: the codebook is {start['whole']:.3g} of its "
        "norm from that of one process with all rows",
        f"after step {end['step']} the ranks' codebooks are {end['apart']:.3g} apart",
        *["exactly that follows if each rank's codebook sees the rank's own rows alone"] * alone,
    ]
    size = max(step["whole"] for step in faults)
    unit = "of the codebook's norm"
    ranks = tuple(sorted({step["rank"] for step in faults}))
    parted = any(step["apart"] > TOLERANCE for step in faults)
    return api.Finding(
        "\n".join(lines), start["step"], (), ranks, size, unit, documented=alone and parted
    )


def exercised(records: api.Records) -> api.Exercise:
    """The ranks had other rows, and sync_codebook was not given."""
    ranks, sync = len(records.ranks), records.params.sync_codebook
    parted = ranks > 1 and all(step["parted"] for step in records.of("step"))
    return api.Exercise.of(
        parted, f"{ranks} ranks quantized other rows", "there was one rank"
    ) & api.Exercise.needs(not sync, "sync_codebook was given")


picture = api.lines(
    "How far the ranks' codebooks are apart",
    "with the bug each rank has a codebook of its own; without it all have the same",
    lambda step: step["apart"],
    y="part of the codebook's norm",
)
