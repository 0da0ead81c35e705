"""After load_state, accelerate's loader shuffles the next epoch as it did the first.

This affects runs that save with ``save_state`` at the end of an epoch and go on with ``load_state``
in a new process. Each epoch comes once, but the first one after the resume has the order of the
first epoch of the run, and so on. A run that is stopped after each epoch, as on a cluster with a
time limit, trains on the same order again and again. No row is lost within an epoch, and nothing
shows it.

Root cause: on several ranks, a prepared loader gives torch's sampler a generator of its own, and
``save_state`` does not save the generator's state. The seedable sampler's order depends on the
loader's count of epochs, which is not saved, either: the code that saves a sampler runs for
iterable datasets alone, and these have none. Without several ranks, torch's sampler draws from the
global generator, which is restored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import epochs, orders, rows, stops
from scenarios.common.line_edits import followed, setting

BATCH = 2
"""Rows of a batch of a rank."""


def order_saved(function: Any) -> api.Edits:
    """Each rank saves the loader's count of epochs, and the state of its generator."""
    state = "getattr(dataloader.synchronized_generator, 'get_state', lambda: None)()"
    code = (
        f"torch.save([dataloader.iteration, {state}], f'{{output_sampler_file}}.{{process_index}}')"
    )
    yield from followed(setting(function, "output_sampler_file"), code)


def order_loaded(function: Any) -> api.Edits:
    """Each rank loads them into its loader."""
    yield from followed(
        setting(function, "input_sampler_file"),
        "iteration, state = torch.load(f'{input_sampler_file}.{process_index}')",
        "dataloader.set_epoch(iteration)",
        "if state is not None: dataloader.synchronized_generator.set_state(state)",
    )


def as_the_first(faults: Sequence[epochs.Fault], records: api.Records) -> bool:
    """Each epoch after the resume has the order that the epoch before it has without a stop: the
    orders begin again with that of the first epoch. Otherwise the rows are right."""
    whole, after = rows.by_epoch(records), rows.by_epoch(records, "after")
    again = all(after[epoch] == whole[epoch - 1] for epoch in after if epoch > 1)
    return again and epochs.units(faults) == {epochs.Unit.MOVED}


oracle = stops.Stopped(
    as_the_first, checks=(epochs.another_number, epochs.row_twice), picture=orders.in_order
)


def run(ctx: api.Context) -> None:
    """Read epochs without a stop; read one, save, load into a new Accelerator, and go on."""
    from accelerate.utils import set_seed
    from torch.utils.data import DataLoader

    from scenarios.accelerate._accelerator import accelerator

    p, numbers = ctx.params, range(ctx.params.rows)
    loading = {} if p.order == "default" else {"use_seedable_sampler": True}

    def start() -> tuple[Any, Any]:
        engine = accelerator(ctx, **loading)
        set_seed(ctx.seed)  # as a script does when it begins
        data: Any = numbers
        return engine, engine.prepare(DataLoader(data, BATCH, shuffle=True))

    def seen(loader: Any, epoch: int) -> list[int]:
        if p.order == "set_epoch":
            loader.set_epoch(epoch - 1)
        return [int(row) for batch in loader for row in batch]

    _, loader = start()
    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=seen(loader, epoch))
    engine, loader = start()
    ctx.record("before", 1, seen=seen(loader, 1))
    engine.save_state(str(ctx.folder))
    engine.wait_for_everyone()
    engine, loader = start()
    engine.load_state(str(ctx.folder))
    ctx.record("after", 1, seen=[])
    for epoch in api.each(p.epochs)[1:]:
        ctx.record("after", epoch, seen=seen(loader, epoch))


def exercised(records: api.Records) -> api.Exercise:
    """The run was resumed with an order that load_state must restore, and its epochs differ."""
    p, whole = records.params, rows.by_epoch(records)
    several = len(records.ranks) > 1 or p.order != "default"
    differ = all(whole[epoch] != whole[epoch - 1] for epoch in whole if epoch > 1)
    return (
        api.Exercise.of(p.order != "set_epoch", f"the order was of the kind {p.order}")
        & api.Exercise.needs(several, "one rank draws from the global generator")
        & api.Exercise.needs(differ, "two epochs have the same order")
    )
