"""From the second epoch on, accelerate no longer accumulates: each micro-batch updates the weights.

With ``gradient_accumulation_steps=4`` the first epoch is right. After it, each micro-batch takes a
step of its own, with a quarter of its gradient. AdamW hardly depends on the size of a gradient, so
it takes four times as many steps of full size, each from a quarter of the intended batch. A
prepared scheduler ends four times too early. The losses are right. This affects users who train for
more than one epoch inside ``accumulate()``.

Root cause: at the end of an epoch ``accumulate()`` must update the weights in any case, so the
prepared loader marks that it has ended. accelerate 0.20.0 keeps this mark in the loader, but does
not clear it when the loader starts again. 0.20.3 clears it for loaders that each rank reads itself.
0.21.0 also clears it for loaders that one rank reads for all ranks, as accelerate does with an
``IterableDataset``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import applied, usual_checks

if TYPE_CHECKING:
    from scenarios.common.linear import Rows

LOADERS = {"iterable": "DataLoaderDispatcher", "map": "DataLoaderShard"}
"""accelerate's class of loader for each kind of dataset."""

ROWS = 16
"""Rows of a micro-batch."""


@dataclass(frozen=True)
class Step(applied.Step):
    """A micro-batch: which shares of its gradient, and of the earlier ones of its window, were
    applied."""

    loss: api.Number

    @property
    def changed(self) -> bool:
        """Whether it changed the weights; rounding in fp32 moves them by 1e-7."""
        return not api.near(self.applied, 0.0, within=1e-5 * self.gradient)


def alone(step: Step, records: api.Records) -> bool:
    """In the first epoch all is right. After it, each micro-batch applies its own gradient, divided
    by the accumulation steps."""
    *before, _ = step.micro
    share = len(step.micro) / records.params.accumulation
    is_right = accumulates(step, records)
    in_first_epoch = (step.step - 1) // _micro_batches(records.params) == 0
    return (
        is_right
        if in_first_epoch
        else not is_right and step.has([*[0] * len(before), share], within=1e-2)
    )


def accumulates(step: Step, records: api.Records) -> bool:
    """The last micro-batch of a window applied the window's mean; the others applied nothing."""
    return step.times(1) if len(step.micro) == records.params.accumulation else not step.changed


def updates(records: api.Records) -> list[int]:
    """How many micro-batches of each epoch changed the weights."""
    count = _micro_batches(records.params)
    counts = Counter((step.step - 1) // count for step in records.typed(Step) if step.changed)
    return [counts[epoch] for epoch in range(records.params.epochs)]


@dataclass(frozen=True)
class Windows(applied.Applied[Step]):
    """The micro-batches of a window are one update."""

    unit = "times the right number of updates in an epoch"

    def plan(self, at: api.Position) -> api.Plan:
        """The loader's class, and each micro-batch."""
        steps = api.each(_micro_batches(at.params) * at.params.epochs)
        name = api.exactly(LOADERS[at.params.data])
        return {"loader": api.Kind({"name": name}), "step": api.Kind(Step.shapes(), steps)}

    def is_right(self, step: Step, records: api.Records) -> bool:
        return accumulates(step, records)

    def error(self, step: Step, records: api.Records) -> float:
        return max(updates(records)) / float(records.params.updates)

    def describe(self, wrong_steps: Sequence[Step], records: api.Records) -> Iterator[str]:
        counts = ", ".join(map(str, updates(records)))
        yield (f"the epochs have {counts} updates, where {records.params.updates} each are right")


oracle = Windows(Step, alone)


def run(ctx: api.Context) -> None:
    """Fit a linear map under accumulate(); compare each micro-batch's update with plain torch."""
    import torch
    from accelerate import Accelerator

    from scenarios.common import linear, plain_torch

    p = ctx.params
    with ctx.phase("init"):
        accelerator: Any = Accelerator(
            cpu=ctx.lane is api.Lane.CPU, gradient_accumulation_steps=p.accumulation
        )
        plain = linear.model()
        sgd = torch.optim.SGD(plain.parameters(), lr=p.lr)
        rows = next(linear.batches(ctx, plain, ROWS * _micro_batches(p), 20.0, 0.1))
        model, optimizer, loader = accelerator.prepare(plain, sgd, _loader(rows, p.data))
    ctx.record("loader", name=type(loader).__name__)
    step = 0
    for _ in range(p.epochs):
        window: list[Rows] = []
        if p.reset:
            loader.end_of_dataloader = False
        for inputs, labels in loader:
            step += 1
            window.append((inputs, labels))
            update = plain_torch.Update(plain_torch.loss_of(plain, linear.loss), plain, *window)
            with accelerator.accumulate(model):
                loss = linear.loss(model(inputs), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            ctx.record("step", step, loss=float(loss.detach()), **update.facts(p.lr))
            if len(window) == p.accumulation:
                window = []


def _loader(rows: Rows, data: str) -> Any:
    """The script's own loader over these rows, always in the same order."""
    from torch.utils.data import DataLoader, IterableDataset

    pairs: Any = [*zip(*rows, strict=True)]

    class Stream(IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            yield from pairs

    return DataLoader(pairs if data == "map" else Stream(), batch_size=ROWS)


def _micro_batches(p: Any) -> int:
    """Micro-batches of an epoch."""
    return int(p.accumulation * p.updates)


def exercised(records: api.Records) -> api.Exercise:
    """Several micro-batches were to be accumulated in a second epoch, and the script left the
    loader as it was."""
    p, (loader,) = records.params, records.of("loader")
    text = f"{p.epochs} epochs of {p.accumulation} accumulation steps, with {loader['name']}"
    return api.Exercise.of(p.epochs > 1 and p.accumulation > 1, text) & api.Exercise.needs(
        not p.reset, "the script reset the loader at each epoch"
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The loss is plain torch's for the weights, and falls."""
    losses = usual_checks.loss_ends_higher(records)
    later = [step for step in records.typed(Step) if len(step.micro) == 1]
    unlike = any(not api.near(s.loss, s.reference_loss, share=1e-3) for s in later)
    return losses | {"the first loss of a window is not that of plain torch": unlike}


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of how many updates each epoch had."""
    expected = {float(records.params.updates) for records in trials.values()}
    yield from api.bars(
        "Updates of each epoch",
        "with the bug, each micro-batch is an update from the second epoch on",
        lambda records: ((f"epoch {n}", float(c)) for n, c in enumerate(updates(records), 1)),
        "updates",
        {"right": expected.pop()} if len(expected) == 1 else {},
    )(trials)
