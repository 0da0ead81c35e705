"""kornia's RandomMixUpV2 draws with p twice: of the rows of a chosen batch only a part is mixed.

This affected users of kornia who train with MixUp and ``p`` below 1. With the probability ``p`` a
batch is chosen, and then all of its rows should be mixed. But each row is drawn once more with the
same ``p``, and otherwise left as it is. With p=0.5 a quarter of all rows is mixed, with p=0.2 one
in 25: the training has far less regularization than was chosen. With p=1 nothing is wrong. The
labels fit the images, and nothing shows it but a count.

Root cause: the class passes ``p`` to its base class, which decides on the batch, and to its
generator, which sets the strength of the mixing to 0 in each row with the probability 1 - p. Since
0.9.0 the generator gets 1. RandomCutMixV2 had the same fault.
"""

from __future__ import annotations

import math

from harness.bugs import api

SIZE = 8
DEVIATIONS = 4
"""How far, in standard deviations, a share may be from its probability: one run in 16,000 is
farther."""
ROUNDING = 1e-5


def plan(at: api.Position) -> api.Plan:
    """For each batch: whether it was chosen, its rows that were mixed, and how far its images are
    from what its labels say."""
    facts = {"chosen": api.FLAG, "mixed": api.COUNT, "apart": api.SIZE}
    return {"batch": api.Kind(facts, api.each(at.params.batches))}


def run(ctx: api.Context) -> None:
    """Augment batches; the label of a row is its number, so a row names its partner."""
    import torch
    from kornia.augmentation import RandomMixUpV2

    p = ctx.params
    torch.manual_seed(ctx.seed)
    images = torch.rand(p.rows, 1, SIZE, SIZE).to(ctx.device)
    numbers = torch.arange(p.rows, device=ctx.device)
    for step in api.each(p.batches):
        torch.manual_seed(p.batches * ctx.seed + step - 1)
        augmentation = RandomMixUpV2(p=p.probability, data_keys=["input", "class"])
        outputs, labels = augmentation(images, numbers)
        partners, strength = images[labels[:, 1].long()], labels[:, 2]
        expected = images.lerp(partners, strength[:, None, None, None])
        chosen = augmentation._params["batch_prob"] > 0
        ctx.record(
            "batch",
            step,
            chosen=bool(chosen.all()),
            mixed=int((strength > 0).sum()),
            apart=float((outputs - expected).abs().max()),
        )


def detect(records: api.Records) -> api.Finding | None:
    """Of the rows of the chosen batches a part of about p is mixed, and not all. All other batches
    are left as they are, and the labels say what was done."""
    p, batches = records.params, records.of("batch")
    chosen = [batch for batch in batches if batch["chosen"]]
    partial = [batch for batch in chosen if batch["mixed"] < p.rows]
    odd = [b for b in batches if b["apart"] > ROUNDING or (b["mixed"] and not b["chosen"])]
    if not partial and not odd:
        return None
    mixed, rows = sum(batch["mixed"] for batch in chosen), len(chosen) * p.rows
    by_twice = _fits(mixed, rows, p.probability) and _fits(len(chosen), len(batches), p.probability)
    return api.Finding(
        f"{mixed} of the {rows} rows of {len(chosen)} chosen batches, of {len(batches)}, are mixed",
        step=(partial or odd)[0]["step"],
        magnitude=1 - mixed / max(rows, 1),
        unit="of the rows of chosen batches, left as they were",
        documented=bool(partial) and not odd and by_twice,
    )


def _fits(count: int, of: int, probability: float) -> bool:
    """Whether ``count`` is what so many draws with this probability give."""
    deviation = math.sqrt(of * probability * (1 - probability))
    return abs(count - of * probability) <= DEVIATIONS * deviation


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The labels fit the images, and the right number of batches is chosen."""
    p, batches = records.params, records.of("batch")
    chosen = sum(batch["chosen"] for batch in batches)
    return {
        "an image is not mixed as its label says": any(b["apart"] > ROUNDING for b in batches),
        "the share of chosen batches is not p": not _fits(chosen, len(batches), p.probability),
    }


def _shares(records: api.Records) -> list[tuple[str, float]]:
    batches = records.of("batch")
    mixed = [batch["mixed"] for batch in batches if batch["chosen"]]
    rows = max(len(mixed), 1) * records.params.rows
    return [
        ("batches that were chosen", len(mixed) / len(batches)),
        ("rows of these that were mixed", sum(mixed) / rows),
    ]


picture = api.bars(
    "What RandomMixUpV2 draws",
    "with the bug, only a part of the rows of a chosen batch is mixed",
    _shares,
    "part of them",
)
