"""Is each rank's codebook that of one process which saw the rows of all ranks?

VectorQuantize changes its codebook in each forward pass of training. The reference is the same
class in one process, with ``sync_codebook=False`` and all rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from harness import api

if TYPE_CHECKING:
    from torch import Tensor

TOLERANCE = 1e-3
"""How far a codebook may be from another, as a part of its norm. Rounding moves it by 1e-6."""
DIM, CODES = 4, 8


def plan(at: api.Position) -> api.Plan:
    """How far the ranks' codebooks are from each other, and from those of one process."""
    facts = {"apart": api.alike(api.SIZE), "whole": api.SIZE, "own": api.SIZE}
    return {"step": api.Kind({**facts, "parted": api.alike(api.FLAG)}, api.each(at.params.steps))}


def train(ctx: api.Context, make: Callable[..., Any]) -> None:
    """Quantize each rank's own rows for some steps; ``make`` takes ``sync_codebook`` or nothing.

    ``whole`` is the distance from the codebook of one process with the rows of all ranks, ``own``
    from that of one process with this rank's rows alone; both as a part of that codebook's norm.
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


def _distance(got: Tensor, right: Tensor) -> float:
    return float((got - right).norm() / right.norm())


def detect(records: api.Records) -> api.Finding | None:
    """Each rank has the codebook of its own rows alone, so that the ranks' codebooks differ."""
    steps = records.of("step")
    wrong = [step for step in steps if max(step["whole"], step["apart"]) > TOLERANCE]
    if not wrong:
        return None
    own = all(step["own"] <= TOLERANCE for step in steps)
    first, last = wrong[0], wrong[-1]
    lines = [
        f"rank {first['rank']}, step {first['step']}: the codebook is {first['whole']:.3g} of its "
        "norm from that of one process with all rows",
        f"after step {last['step']} the ranks' codebooks are {last['apart']:.3g} apart",
        *["exactly that follows if each rank's codebook sees the rank's own rows alone"] * own,
    ]
    size = max(step["whole"] for step in wrong)
    unit = "of the codebook's norm"
    ranks = tuple(sorted({step["rank"] for step in wrong}))
    parted = any(step["apart"] > TOLERANCE for step in wrong)
    return api.Finding(
        "\n".join(lines), first["step"], (), ranks, size, unit, documented=own and parted
    )


def unlike_rows(records: api.Records) -> api.Exercise:
    """The ranks had other rows."""
    ranks = len(records.ranks)
    parted = ranks > 1 and all(step["parted"] for step in records.of("step"))
    return api.Exercise.of(parted, f"{ranks} ranks quantized other rows", "there was one rank")


picture = api.lines(
    "How far the ranks' codebooks are apart",
    "with the bug each rank has a codebook of its own; without it all have the same",
    lambda step: step["apart"],
    y="part of the codebook's norm",
)
