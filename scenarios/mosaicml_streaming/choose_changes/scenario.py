"""With shuffle=False a StreamingDataset that takes a part of a stream takes another in each epoch.

This affects users who evaluate on a part of a dataset: a ``Stream`` with ``choose``, ``proportion``
or a fractional ``repeat``, read without shuffling. Each evaluation reads other samples. So its
metrics change from epoch to epoch although the model may not, a comparison of two checkpoints is
one of two test sets as well, and over the epochs the part covers the whole.

Root cause: ``resample_streams`` draws the samples of a shard with a generator that is made from the
seed and the epoch. Upstream's fix in 0.8.1 made the number of samples of each shard and the order
of the batches the same in all epochs. The generator that draws the samples within a shard still
depends on the epoch.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.choose > params.rows:
        raise ValueError("choose must be at most rows")


def by_epoch_if_shuffled(function: Any) -> api.Edits:
    """The generator depends on the epoch only if the other random numbers do."""
    import libcst as cst
    import libcst.matchers as m

    balanced = m.Comparison(left=m.Attribute(attr=m.Name("sampling_method")))
    for condition in m.findall(function, balanced):
        yield condition, cst.parse_expression("self.epoch_seed_change")


def plan(at: api.Position) -> api.Plan:
    """The rows of each epoch, in their order."""
    p = at.params
    return {"epoch": api.Kind({"seen": api.many(api.COUNT, p.choose)}, api.each(p.epochs))}


def run(ctx: api.Context) -> None:
    """Write a stream of one shard, and read it for some epochs without shuffling."""
    import logging

    from streaming import MDSWriter, Stream, StreamingDataset

    logging.getLogger("streaming").setLevel(logging.ERROR)
    p, folder = ctx.params, str(ctx.folder / "stream")
    with MDSWriter(out=folder, columns={"row": "int"}) as writer:
        for row in range(p.rows):
            writer.write({"row": row})
    dataset = StreamingDataset(
        streams=[Stream(local=folder, choose=p.choose)],
        shuffle=False,
        shuffle_seed=ctx.seed,
        sampling_method=p.sampling,
        batch_size=1,
        num_canonical_nodes=1,
    )
    for epoch in api.each(p.epochs):
        ctx.record("epoch", epoch, seen=[int(sample["row"]) for sample in dataset])


def detect(records: api.Records) -> api.Finding | None:
    """Each epoch has the chosen number of rows once, in their order, but not those of the first."""
    epochs = [epoch["seen"] for epoch in records.of("epoch")]
    others = [number for number, seen in enumerate(epochs, 1) if seen != epochs[0]]
    in_order = [seen == sorted(set(seen)) for seen in epochs]
    if not others and all(in_order):
        return None
    new = max(len(set(seen) - set(epochs[0])) for seen in epochs)
    return api.Finding(
        f"{len(others)} of {len(epochs) - 1} later epochs have other rows than the first, up to "
        f"{new} of {records.params.choose}",
        step=min(others, default=1),
        ranks=records.ranks,
        magnitude=new / records.params.choose,
        unit="of the rows of an epoch are new",
        clock="epoch",
        documented=bool(new) and all(in_order),
    )


def exercised(records: api.Records) -> api.Exercise:
    """An epoch has a part of the stream, drawn anew."""
    p = records.params
    text = f"{p.choose} of {p.rows} rows in an epoch, with {p.sampling} sampling"
    return api.Exercise.of(p.choose < p.rows and p.sampling == "balanced", text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Each epoch has the right length, and its rows in their order."""
    epochs = [epoch["seen"] for epoch in records.of("epoch")]
    return {
        "a row comes twice in an epoch": any(len(set(seen)) < len(seen) for seen in epochs),
        "rows are not in their order": any(seen != sorted(seen) for seen in epochs),
    }


picture = api.bars(
    "Rows of all epochs together",
    "with the bug there are more than in one epoch",
    lambda records: [("rows", len({row for e in records.of("epoch") for row in e["seen"]}))],
    "rows",
)
