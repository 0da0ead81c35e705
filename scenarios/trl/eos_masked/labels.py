"""Which tokens are trained? Each example's labels are its own tokens, and none of the padding's.

A rank records ``dataset`` with the ``rows`` as tokens, each ending with ``eos``, and the ``pad``
token; and ``step`` with the ``ids`` and ``labels`` of each row of a batch, its loss, and plain
torch's loss for the same logits and labels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.bugs import api
from scenarios.common import plain_loss

IGNORED = -100
"""The label of a token that does not count."""

TOLERANCE = 1e-4
"""How far (as a fraction) a loss may be from plain torch's: fp32 rounding moves it by 1e-6."""


def plan(rows: Sequence[Sequence[int]], eos: int, pad: int, batch: int, epochs: int) -> api.Plan:
    """The dataset, and some epochs of it in batches."""
    dataset = {
        "rows": api.exactly([*map(list, rows)]),
        "eos": api.exactly(eos),
        "pad": api.exactly(pad),
    }
    step = {
        "ids": api.many(api.many(api.COUNT, least=1), batch),
        "labels": api.many(api.many(api.WHOLE, least=1), batch),
        "loss": api.NUMBER,
        "reference_loss": api.NUMBER,
    }
    return {
        "dataset": api.Kind(dataset),
        "step": api.Kind(step, api.each(len(rows) * epochs // batch)),
    }


@dataclass(frozen=True)
class Example:
    """A row as a model got it."""

    step: int
    ids: Sequence[int]
    """Its tokens without the padding: up to its first EOS."""
    labels: Sequence[int]
    row: int | None
    """Its number in the dataset; None if it is not in it, or not padded with the padding token."""

    @property
    def expected(self) -> list[int]:
        """The labels that the row should have."""
        return [*self.ids, *[IGNORED] * (len(self.labels) - len(self.ids))]

    @property
    def faults(self) -> list[int]:
        """The positions with a wrong label."""
        pairs = zip(self.labels, self.expected, strict=True)
        return [position for position, (label, right) in enumerate(pairs) if label != right]

    @property
    def end_masked(self) -> bool:
        """Whether the label of the EOS is masked, and all others are right."""
        end = len(self.ids) - 1
        return self.faults == [end] and self.labels[end] == IGNORED


def examples(records: api.Records) -> list[Example]:
    """All rows that a model got, in order."""
    dataset, sequence = records.of("dataset")[0], []
    rows = {tuple(row): number for number, row in enumerate(dataset["rows"])}
    for step in records.of("step"):
        for ids, labels in zip(step["ids"], step["labels"], strict=True):
            end = ids.index(dataset["eos"]) + 1 if dataset["eos"] in ids else len(ids)
            padded = len(labels) == len(ids) and set(ids[end:]) <= {dataset["pad"]}
            row = rows.get(tuple(ids[:end])) if padded else None
            sequence.append(Example(step["step"], ids[:end], labels, row))
    return sequence


def otherwise_wrong(records: api.Records) -> Iterator[str]:
    """Rows that the dataset does not have, and a loss that these labels do not have."""
    rows = len(records.of("dataset")[0]["rows"])
    numbers = [one.row for one in examples(records)]
    for epoch in range(len(numbers) // rows):
        if {*numbers[epoch * rows : (epoch + 1) * rows]} != {*range(rows)}:
            yield f"epoch {epoch + 1} did not have each of the {rows} rows once"
    yield from plain_loss.loss_wrong(records, tolerance=TOLERANCE)


def ended(records: api.Records) -> api.Exercise:
    """Each example ended with the EOS, and some were padded."""
    rows, eos = examples(records), records.of("dataset")[0]["eos"]
    with_end = sum(one.ids[-1] == eos for one in rows)
    padded = sum(len(one.ids) < len(one.labels) for one in rows)
    text = f"{with_end} of {len(rows)} examples ended with the EOS token, {padded} were padded"
    return api.Exercise.of(with_end == len(rows) and padded > 0, text)


def padding_trained(records: api.Records) -> dict[str, bool]:
    """The usual check of a collator's labels."""
    beyond = [label for one in examples(records) for label in one.labels[len(one.ids) :]]
    return {"padding is trained": any(label != IGNORED for label in beyond)}


def trained(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of the labels of the first step."""
    fields = []
    for variant, records in trials.items():
        batch = [example for example in examples(records) if example.step == 1]
        for number, example in enumerate(batch, 1):
            for position, label in enumerate(example.labels, 1):
                length = len(example.ids)
                kind = "padding" if position > length else "EOS" if position == length else "word"
                masked = label == IGNORED and position <= length
                fields.append((variant, position, number, f"{kind}, masked" if masked else kind))
    yield api.Grid(
        "Which tokens of the first batch are trained",
        "with the bug the end of each example is masked, as the padding is",
        fields,
        "token",
        "example",
        "label",
        ("EOS, masked", "word, masked"),
    )
