"""GPTDataset masks, in each row, what was padding in an earlier row, and never trains these tokens.

This affects users whose documents were padded to the length of a row when the data was made, as for
instructions or for packing without cuts. All rows that a process reads lose the tokens at the
positions where its first row has padding. Up to 0.14 each further row added its own padding to
that, until the loss was 0 over no token at all. The lost tokens are text, so the loss looks usual.
Which tokens are lost depends on the row that comes first: each worker of a loader loses others, and
so does a run that was resumed. Rows that are cut from one long text have no padding, and lose none.

Root cause: a data set makes the loss mask of its first row, keeps it for the others, and only then
clears it where that row has padding. What it kept is the same tensor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from harness.bugs import api
from scenarios.common import usual_checks
from scenarios.common.line_edits import setting

LENGTH, BATCH, WORDS = 8, 2, 32
"""Tokens of a row, rows of a step, and words of the vocabulary."""
FILLED = 0
"""What the data set puts into tokens and labels instead of the padding."""


def kept_copy(function: Any) -> api.Edits:
    """The mask is copied before it is kept."""
    import libcst as cst

    for line in setting(function, "cached_loss_mask"):
        yield line, cst.parse_statement("self.cached_loss_mask = loss_mask.clone()")


def plan(at: api.Position) -> api.Plan:
    """Of each step: which tokens of its rows are text, which count in the loss, and the loss."""
    rows = api.many(api.many(api.FLAG, LENGTH), BATCH)
    steps = (at.params.documents - 1 - at.params.start) // BATCH
    facts = {"text": rows, "counted": rows, "loss": api.SIZE}
    return {"step": api.Kind(facts, api.each(steps))}


def run(ctx: api.Context) -> None:
    """Train a model of pairs of words on upstream's data set, and record the masks of its rows."""
    import torch
    from torch.nn import functional as F

    from scenarios.megatron_core.earlier_padding_masked import padded

    p = ctx.params
    with ctx.phase("init"):
        dataset = padded.dataset(ctx, LENGTH, WORDS)
        rows = torch.utils.data.Subset(dataset, range(p.start, len(dataset)))
        loader = torch.utils.data.DataLoader(rows, BATCH, drop_last=True)
        torch.manual_seed(ctx.seed)
        model = torch.nn.Embedding(WORDS + 1, WORDS + 1).to(ctx.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    with ctx.phase("steps"):
        for step, batch in enumerate(loader, 1):
            tokens, labels, mask = (
                batch[name].to(ctx.device) for name in ("tokens", "labels", "loss_mask")
            )
            losses = F.cross_entropy(model(tokens).transpose(1, 2), labels, reduction="none")
            loss = (losses * mask).sum() / mask.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ctx.record(
                "step",
                step,
                text=(labels != FILLED).tolist(),
                counted=mask.bool().tolist(),
                loss=float(loss),
            )


@dataclass(frozen=True)
class Row:
    """A row that was read: its text, and what counts of it, by position."""

    step: int
    text: Sequence[bool]
    counted: Sequence[bool]

    @property
    def lost(self) -> int:
        return sum(text and not counted for text, counted in zip(*self.masks, strict=True))

    @property
    def masks(self) -> tuple[Sequence[bool], Sequence[bool]]:
        return self.text, self.counted


def _rows(records: api.Records) -> list[Row]:
    return [
        Row(step["step"], text, counted)
        for step in records.of("step")
        for text, counted in zip(step["text"], step["counted"], strict=True)
    ]


def _both(first: Sequence[bool], second: Sequence[bool]) -> list[bool]:
    return [a and b for a, b in zip(first, second, strict=True)]


def detect(records: api.Records) -> api.Finding | None:
    """In each row a token counts if it is text, and if that position is text in the first row; or,
    in old releases, in all rows before."""
    rows = _rows(records)
    wrong = [row for row in rows if row.counted != row.text]
    if not wrong:
        return None
    counted = [row.counted for row in rows]
    first = [_both(row.text, rows[0].text) for row in rows]
    before = list(accumulate((row.text for row in rows), _both))
    which = {"the first row": counted == first, "an earlier row": counted == before}
    lost, total = sum(row.lost for row in rows), sum(sum(row.text) for row in rows)
    name = next((name for name, is_so in which.items() if is_so), "no such row")
    return api.Finding(
        f"{lost} of {total} tokens of text do not count in the loss, in {len(wrong)} of "
        f"{len(rows)} rows: those at the positions that are padding in {name}",
        step=wrong[0].step,
        ranks=records.ranks,
        magnitude=lost / total,
        unit="of the tokens never count",
        documented=any(which.values()),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The first row had padding where later ones have text, and masks were kept."""
    first, *others = _rows(records)
    ahead = sum(
        any(text and not here for text, here in zip(row.text, first.text, strict=True))
        for row in others
    )
    return api.Exercise.of(
        ahead > 0,
        f"{LENGTH - sum(first.text)} tokens of the first row were padding, where {ahead} of "
        f"{len(others)} other rows had text",
        "the first row had no padding",
    ) & api.Exercise.of(
        not records.params.mask_ends,
        "masks were kept, without eod_mask_loss",
        "eod_mask_loss was on, so no mask is kept",
    )


insufficient_checks = usual_checks.loss_ends_higher


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """The masks of all rows in their order."""
    fields = [
        (variant, position, number, "counts" if counts else "lost" if text else "padding")
        for variant, records in trials.items()
        for number, row in enumerate(_rows(records), 1)
        for position, (text, counts) in enumerate(zip(*row.masks, strict=True), 1)
    ]
    yield api.Grid(
        "Which tokens count in the loss",
        "with the bug no row trains the positions that are padding in the first one",
        fields,
        "token",
        "row",
        "token",
        ("lost",),
    )
