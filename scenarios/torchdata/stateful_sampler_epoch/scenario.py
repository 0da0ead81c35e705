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
from scenarios.common import resumed_epoch

BATCH = 2
"""Rows of a batch of a rank."""


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.before * BATCH * 2 >= params.rows:
        raise ValueError("scenario.before must leave rows in the epoch")


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


def plan(at: api.Position) -> api.Plan:
    """The rows of a rank in each epoch of a launch, up to the epoch of the save."""
    return {"epochs": api.Kind({"rows": api.many(api.many(api.COUNT))})}


def run(ctx: api.Context) -> None:
    """Read without a stop; read and save; resume in a new process."""
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    p, numbers = ctx.params, list(range(ctx.params.rows))
    state = ctx.folder / f"state_{ctx.rank}.pt"
    sampler = StatefulDistributedSampler(numbers, ctx.world_size, ctx.rank, seed=ctx.seed)
    loader = StatefulDataLoader(numbers, BATCH, sampler=sampler)
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


def _of(records: api.Records, rank: int) -> tuple[list[list[int]], list[list[int]], list[int]]:
    """The epochs of a rank without a stop and up to the save, and its rows after the resume."""
    whole, saved, resumed = (one["rows"] for one in records.of("epochs", rank))
    return whole, saved, resumed[0]


def detect(records: api.Records) -> api.Finding | None:
    """After the resume each rank gets the end of epoch 0, where without a stop it gets the end of
    the epoch of the save."""
    p, offset = records.params, records.params.before * BATCH
    ranks, documented, union = [], True, set()
    for rank in records.ranks:
        whole, saved, tail = _of(records, rank)
        if saved != [*whole[:-1], whole[-1][:offset]]:
            return api.Finding("the epochs before the save differ", ranks=(rank,), documented=False)
        union |= {*saved[-1], *tail}
        if tail != whole[-1][offset:]:
            ranks.append(rank)
            documented = documented and tail == whole[0][offset:]
    if not ranks:
        return None
    never = p.rows - len(union)
    return api.Finding(
        f"resumed after {offset * len(records.ranks)} of {p.rows} rows of epoch {p.epoch}: {never} "
        "rows never came in that epoch",
        step=p.before,
        ranks=tuple(ranks),
        magnitude=never / p.rows,
        unit="of the epoch's rows seen by nobody",
        documented=documented and tuple(ranks) == records.ranks,
    )


def exercised(records: api.Records) -> api.Exercise:
    """The sampler was resumed in an epoch whose order is not that of epoch 0, and was not told the
    epoch again."""
    p = records.params
    whole = [_of(records, rank)[0] for rank in records.ranks]
    differ = all(epochs[0] != epochs[-1] for epochs in whole)
    text = f"resumed in epoch {p.epoch}; set_epoch after the load: {'yes' if p.again else 'no'}"
    return api.Exercise.of(p.epoch > 0 and not p.again, text) & api.Exercise.needs(
        differ, "the epoch has the order of epoch 0"
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The number of rows after the resume is right, and none of them comes twice."""
    offset, size = records.params.before * BATCH, records.params.rows // len(records.ranks)
    tails = [_of(records, rank)[2] for rank in records.ranks]
    return {
        "another number of rows comes after the resume": any(
            len(r) != size - offset for r in tails
        ),
        "a row comes twice after the resume": any(len(set(r)) < len(r) for r in tails),
    }


def _came(records: api.Records) -> list[int]:
    """The rows that came in the epoch of the resume, on all ranks."""
    parts = [_of(records, rank) for rank in records.ranks]
    return [row for _, saved, rest in parts for row in [*saved[-1], *rest]]


picture = resumed_epoch.how_often(_came)
