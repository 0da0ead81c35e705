"""A StatefulDataLoader that is resumed from the end of an epoch gives an empty epoch first.

This affects users who save the state of torchdata's StatefulDataLoader after an epoch, as is usual
for a checkpoint, and load it in a new process. The first epoch after the resume has no batch, and
ends at once. The epochs after it have the right order. A training for a number of epochs loses one
epoch with each resume; no error is raised.

Root cause: the batch sampler was its own iterator. After the load it continues the epoch that is
over, and there is nothing left to continue. The fix gives each epoch an iterator of its own.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api

BATCH = 2
"""Rows of a batch."""


def plan(at: api.Position) -> api.Plan:
    """The rows of each epoch of a launch."""
    return {"epochs": api.Kind({"rows": api.many(api.many(api.COUNT))})}


def run(ctx: api.Context) -> None:
    """Read epochs without a stop; read and save; resume in a new process."""
    import torch

    p = ctx.params
    torch.manual_seed(ctx.seed)
    loader, state = _loader(p), ctx.folder / "state.pt"
    passes, extra = divmod(p.stop * BATCH, p.rows)
    if ctx.launch == "save":
        epochs = [_rows(loader) for _ in range(passes)]
        if extra:
            batches = iter(loader)
            epochs.append([row for _ in range(extra // BATCH) for row in next(batches).tolist()])
        torch.save(loader.state_dict(), state)
    elif ctx.launch == "resume":
        loader.load_state_dict(torch.load(state, weights_only=True))
        epochs = [_rows(loader) for _ in range(p.epochs)]
    else:
        epochs = [_rows(loader) for _ in range(passes + p.epochs)]
    ctx.record("epochs", rows=epochs)


def _loader(params: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(list(range(params.rows)), BATCH, shuffle=params.shuffle)


def _rows(loader: Any) -> list[int]:
    return [row for batch in loader for row in batch.tolist()]


def _epochs(records: api.Records) -> tuple[list[list[int]], list[list[int]]]:
    """The epochs of the resumed loader, and of one without a stop from the same row on."""
    whole, _, resumed = (one["rows"] for one in records.of("epochs"))
    passes, extra = divmod(records.params.stop * BATCH, records.params.rows)
    return resumed, [whole[passes][extra:], *whole[passes + 1 :]]


def detect(records: api.Records) -> api.Finding | None:
    """The first epoch after the resume is empty, and those behind it are the ones that should have
    come. The epochs before the save, and those without a stop, are complete."""
    whole, saved, _ = (one["rows"] for one in records.of("epochs"))
    resumed, expected = _epochs(records)
    complete = all(sorted(epoch) == list(range(records.params.rows)) for epoch in whole)
    before = [row for epoch in whole for row in epoch][: records.params.stop * BATCH]
    if not complete or before != [row for epoch in saved for row in epoch]:
        return api.Finding("epochs without a resume are not complete, or differ", documented=False)
    if resumed == expected:
        return None
    rows = ", ".join(str(len(epoch)) for epoch in resumed)
    lost = 1 - sum(map(len, resumed)) / sum(map(len, expected))
    return api.Finding(
        f"the epochs after the resume have {rows} rows, instead of {records.params.rows} each",
        step=1,
        ranks=records.ranks,
        magnitude=lost,
        unit="of the rows after the resume never came",
        clock="epoch",
        documented=not resumed[0] and resumed[1:] == expected[:-1],
    )


def exercised(records: api.Records) -> api.Exercise:
    """The state was saved when an epoch was complete."""
    passes, extra = divmod(records.params.stop * BATCH, records.params.rows)
    text = f"complete epochs before the save: {passes}; rows of the next one: {extra}"
    return api.Exercise.of(passes > 0 and extra == 0, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Whatever comes after the resume is right."""
    resumed, expected = _epochs(records)
    candidates = [*expected, []]
    return {
        "a row comes twice in an epoch": any(len(set(e)) < len(e) for e in resumed),
        "an epoch with rows has another order": any(epoch not in candidates for epoch in resumed),
    }


picture = api.bars(
    "Rows of each epoch after the resume",
    "with the bug the first epoch is empty",
    lambda records: (
        (f"epoch {number}", len(epoch)) for number, epoch in enumerate(_epochs(records)[0], 1)
    ),
    "rows",
)
