"""Does a model train on packed rows as on the same rows alone?

Packing puts several short rows into one. ``position_ids`` that begin again at each row tell the
model where. transformers' own collator, DataCollatorWithFlattening, makes such a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features
from scenarios.transformers._sizes import VOCABULARY

if TYPE_CHECKING:
    from torch import Tensor

RATE = 0.1


oracle = features.Feature("exactly that follows if each token attends to all before it in the pack")
"""Of the scenarios in which packed rows see each other."""


def causal(at: Tensor, rows: Tensor) -> Tensor:
    """Each token attends to all before it in the pack; see ``train``."""
    return added(at[:, None] >= at)


def train(
    ctx: api.Context, model: Any, masks: Callable[[Tensor, Tensor], Any], ones: bool = False
) -> None:
    """Train under DDP on packed rows, and record each step.

    ``masks`` makes the ``attention_mask`` that has the documented fault. Its arguments are each
    token's place in the pack and the number of each token's row, both [tokens].
    ``ones`` passes a mask of ones with the packed rows.
    """
    import copy

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import DataCollatorWithFlattening

    dist.init_process_group(ctx.lane.backend)
    beside = copy.deepcopy(model)  # what watches the training must see no other forward passes
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    collate = DataCollatorWithFlattening()

    def together(rows: Sequence[Tensor]) -> dict[str, Tensor]:
        batch = collate([{"input_ids": row.tolist()} for row in rows])
        return {name: value.to(ctx.device) for name, value in batch.items()}

    packs = [_rows(ctx, rank) for rank in range(ctx.world_size)]
    rows = torch.cat([torch.full((len(row),), number) for number, row in enumerate(packs[0])])
    rows = rows.to(ctx.device)
    at = torch.arange(len(rows), device=ctx.device)
    for step in api.each(ctx.params.steps):
        beside.load_state_dict(model.state_dict())
        expected = features.of_losses(beside, [_apart(beside, rows, ctx.device) for rows in packs])
        unlike = {"attention_mask": masks(at, rows)}
        faulty = [beside(**together(pack), **unlike).loss for pack in packs]
        documented = features.of_losses(beside, faulty)
        mask = {"attention_mask": torch.ones_like(at)[None]} if ones else {}
        loss = ddp(**together(packs[ctx.rank]), **mask).loss
        loss.backward()
        actual = features.gradients(model)
        optimizer.step()
        optimizer.zero_grad()
        features.record(ctx, step, loss, actual, expected, documented)


def added(visible: Tensor) -> Tensor:
    """A mask to be added to scores [1, 1, queries, keys]: 0 where ``visible`` [queries, keys]."""
    import torch

    zeros = torch.zeros(1, 1, *visible.shape, device=visible.device)
    return zeros.masked_fill(~visible, torch.finfo(torch.float32).min)


def several(records: api.Records) -> api.Exercise:
    """Several rows were packed into one."""
    packed = records.params.packed
    return api.Exercise.of(packed > 1, f"{packed} rows were packed into one")


def _rows(ctx: api.Context, rank: int) -> list[Tensor]:
    """The rows that a rank packs, the same in each step."""
    import torch

    draw = torch.Generator().manual_seed(ctx.seed + rank)
    lengths = range(ctx.params.length, ctx.params.length + ctx.params.packed)
    return [torch.randint(3, VOCABULARY, (length,), generator=draw) for length in lengths]


def _apart(model: Any, rows: Sequence[Tensor], device: Any) -> Tensor:
    """The mean loss of a token, with a forward pass for each row."""
    import torch.nn.functional as F

    total: Any = 0
    for row in rows:
        tokens = row[None].to(device)
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]
        total = total + F.cross_entropy(logits, tokens[0, 1:], reduction="sum")
    return total / sum(len(row) - 1 for row in rows)
