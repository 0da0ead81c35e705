"""Resumed in its second epoch or later, a SamplerWrapper replays the end of the first epoch.

This affects users of torchdata's nodes who wrap a StatefulDistributedSampler and save within an
epoch. The wrapper counts the epochs, and tells each to the sampler; users need not do so. After a
load it does not. The rest of the epoch has the rows that epoch 0 had at that place: some rows come
a second time and others never, here 6 of 24. Losses look normal. Samplers without a state, such as
torch's DistributedSampler, are told the epoch, and are right.

Root cause: on a load, ``SamplerWrapper.reset`` calls ``set_epoch`` only if the sampler has no
state. The state of a StatefulDistributedSampler lacks the epoch (see ``stateful_sampler_epoch``).
Pull request 1516 calls it in both cases; it is merged, but in no release as of 0.11.0.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.torchdata import _resumed as resumed

check_params = resumed.check_params
oracle = resumed.Resumed()


def epoch_first(tree: Any) -> api.Edits:
    """``reset`` calls ``set_epoch`` before it loads the state of a sampler."""
    import libcst as cst
    import libcst.matchers as m

    def calls(name: str) -> Any:
        return m.Call(func=m.Attribute(attr=m.Name(name)))

    for line in m.findall(tree, m.SimpleStatementLine([m.Expr(calls("load_state_dict"))])):
        told = cst.parse_statement(
            'if hasattr(self.sampler, "set_epoch"): self.sampler.set_epoch(self.epoch)'
        )
        yield line, cst.FlattenSentinel([told, line])


def run(ctx: api.Context) -> None:
    """Read without a stop; read and save; resume in a new process."""
    import torch
    from torch.utils.data import DistributedSampler
    from torchdata import nodes
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    p, numbers = ctx.params, list(range(ctx.params.rows))
    state = ctx.folder / f"state_{ctx.rank}.pt"
    kind: Any = StatefulDistributedSampler if p.stateful else DistributedSampler
    sampler = kind(numbers, ctx.world_size, ctx.rank, seed=ctx.seed)
    loader = nodes.Loader(nodes.Batcher(nodes.SamplerWrapper(sampler), resumed.BATCH))
    epochs: list[list[int]] = []
    if ctx.launch == "resume":
        loader.load_state_dict(torch.load(state, weights_only=True))
        epochs.append([row for batch in loader for row in batch])
    else:
        for epoch in range(p.epoch + 1):
            order: list[int] = []
            for number, batch in enumerate(loader, 1):
                order += batch
                if ctx.launch == "save" and (epoch, number) == (p.epoch, p.before):
                    torch.save(loader.state_dict(), state)
                    break
            epochs.append(order)
    ctx.record("epochs", rows=epochs)


def exercised(records: api.Records) -> api.Exercise:
    """A sampler with a state was resumed in an epoch whose order is not that of epoch 0."""
    p = records.params
    text = f"resumed in epoch {p.epoch}; the sampler has {'a' if p.stateful else 'no'} state"
    return api.Exercise.of(p.epoch > 0 and p.stateful, text) & resumed.another_order(records)
