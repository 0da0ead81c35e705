"""Resumed in its second epoch or later, a StatefulDistributedSampler replays the end of the first.

This affects users who save and load torchdata's StatefulDataLoader with a
StatefulDistributedSampler within an epoch, and do not call ``set_epoch`` again after the load. The
rest of the epoch has the rows that epoch 0 had at that place: some rows come a second time and
others never, here 6 of 24. Losses look normal.

Root cause: the order of an epoch depends on the sampler's seed and epoch, but its state contains
only the number of rows that came (``yielded``). After the load the epoch is 0. Our remedy adds the
epoch to the state, as pull request 1515 does. That pull request is merged, but in no release as of
0.11.0.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.torchdata import _resumed as resumed

check_params = resumed.check_params
oracle = resumed.Resumed()


def epoch_in_state(tree: Any) -> api.Edits:
    """``state_dict`` also returns the epoch, and ``load_state_dict`` sets it."""
    import libcst as cst
    import libcst.matchers as m

    body: Any = tree.body
    saved: Any = m.findall(body, m.Return(m.Dict()))[0]
    entry = cst.DictElement(cst.SimpleString('"epoch"'), cst.parse_expression("self.epoch"))
    with_epoch = saved.value.with_changes(elements=[*saved.value.elements, entry])
    body = body.deep_replace(saved, saved.with_changes(value=with_epoch))
    # Only now, because the replacement has renewed all nodes.
    load: Any = m.findall(body, m.FunctionDef(m.Name("load_state_dict")))[0]
    line = cst.parse_statement('self.set_epoch(state_dict["epoch"])')
    longer = load.body.with_changes(body=[*load.body.body, line])
    yield tree.body, body.deep_replace(load, load.with_changes(body=longer))


def run(ctx: api.Context) -> None:
    """Read without a stop; read and save; resume in a new process."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    p, numbers = ctx.params, list(range(ctx.params.rows))
    state = ctx.folder / f"state_{ctx.rank}.pt"
    sampler = StatefulDistributedSampler(numbers, ctx.world_size, ctx.rank, seed=ctx.seed)
    loader = StatefulDataLoader(numbers, resumed.BATCH, sampler=sampler)
    epochs: list[list[int]] = []
    if ctx.launch == "resume":
        loader.load_state_dict(torch.load(state, weights_only=True))
        if p.again:
            sampler.set_epoch(p.epoch)
        epochs.append([row for batch in loader for row in batch.tolist()])
    else:
        for epoch in range(p.epoch + 1):
            sampler.set_epoch(epoch)
            order: list[int] = []
            for number, batch in enumerate(loader, 1):
                order += batch.tolist()
                if ctx.launch == "save" and (epoch, number) == (p.epoch, p.before):
                    torch.save(loader.state_dict(), state)
                    break
            epochs.append(order)
    ctx.record("epochs", rows=epochs)


def exercised(records: api.Records) -> api.Exercise:
    """The sampler was resumed in an epoch whose order is not that of epoch 0, and was not told the
    epoch again."""
    p = records.params
    text = f"resumed in epoch {p.epoch}; set_epoch after the load: {'yes' if p.again else 'no'}"
    return api.Exercise.of(p.epoch > 0 and not p.again, text) & resumed.another_order(records)
