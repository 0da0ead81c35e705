"""kornia's RandomCutMixV2 draws one place for all cuts of a batch.

This affected users of kornia who train with CutMix. Each row of a batch gets a part of another row,
of a size of its own. Its place should be drawn for each row as well, and was drawn once for the
batch: if the part of one row is in the upper left corner, those of all rows are. So the images of a
batch are mixed in one way, which a batch norm and a gradient see as one. Over many batches each
place comes as often as it should, and a look at single images shows nothing.

Root cause: the generator draws one number for each axis, and multiplies it by the room that each
cut has left. Since 0.9.0 it draws as many numbers as there are cuts.
"""

from __future__ import annotations

from harness.bugs import api

MIXES = 2
NEAR = 0.01
"""How far the place of a cut may be from that of another one, as a part of the room that the cut
has left, if both come from one draw: it is rounded to a pixel."""


def plan(at: api.Position) -> api.Plan:
    """The places and the widths of the cuts of each batch."""
    places, widths = (api.many(shape, MIXES * at.params.rows) for shape in (api.SIZE, api.COUNT))
    facts = {"x": places, "y": places, "width": widths}
    return {"batch": api.Kind(facts, api.each(at.params.batches))}


def run(ctx: api.Context) -> None:
    """Draw the cuts of batches; only the sizes of the images are needed for that."""
    import torch
    from kornia.augmentation import RandomCutMixV2

    p = ctx.params
    for step in api.each(p.batches):
        torch.manual_seed(p.batches * ctx.seed + step - 1)
        augmentation = RandomCutMixV2(p=1.0, num_mix=MIXES, same_on_batch=p.alike)
        cuts = augmentation.forward_parameters(torch.Size([p.rows, 1, p.side, p.side]))["crop_src"]
        corners = cuts.flatten(0, 1).double()
        starts, sizes = corners[:, 0], corners[:, 2] - corners[:, 0] + 1
        places = (starts / (p.side - sizes).clamp(min=1)).T.tolist()
        widths = [int(width) for width in sizes[:, 0]]
        ctx.record("batch", step, x=places[0], y=places[1], width=widths)


def detect(records: api.Records) -> api.Finding | None:
    """In each batch all cuts have one place, in both axes, while their widths differ."""
    p = records.params
    if p.alike:  # then each mix has one place and one width
        return None
    batches = records.of("batch")
    shared = [batch for batch in batches if min(_spreads(batch, p.side)) < NEAR]
    if not shared:
        return None
    first = shared[0]
    return api.Finding(
        f"in {len(shared)} of {len(batches)} batches all {len(first['x'])} cuts are at one place: "
        f"in the first one at {first['x'][0]:.3f} and {first['y'][0]:.3f} of the room that is left",
        step=first["step"],
        magnitude=1 - max(_spreads(first, p.side)),
        unit="of the room, in which no cut is",
        documented=all(
            max(_spreads(batch, p.side)) < NEAR and len(set(batch["width"])) > 1
            for batch in batches
        ),
    )


def _spreads(batch: api.Record, side: int) -> list[float]:
    """How far apart the places of a batch's cuts are, on each axis. Cuts with little room have no
    place: it would be rounded to a pixel of few."""
    cuts = zip(batch["x"], batch["y"], batch["width"], strict=True)
    axes = zip(*((x, y) for x, y, width in cuts if width < 0.99 * side), strict=True)
    return [max(places) - min(places) for places in axes]


picture = api.bars(
    "How far apart the cuts of a batch are",
    "with the bug, all cuts of a batch are at one place",
    lambda records: [
        (f"batch {batch['step']}", max(_spreads(batch, records.params.side)))
        for batch in records.of("batch")
    ],
    "part of the room",
)
