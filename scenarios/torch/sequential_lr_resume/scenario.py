"""SequentialLR(last_epoch=N) begins again at the first epoch's rate when a training is resumed.

A warmup and a decay are often joined by ``SequentialLR``. If you resume with ``last_epoch``, as
with any other scheduler of torch, you get the first scheduler's first rate, and then the later
scheduler's decay from that rate. Here a run goes on at 0.1, 0.09, 0.081 instead of 0.81, 0.729,
0.656: a ninth of the rate, for the rest of the training. The scheduler's own ``last_epoch`` is
right.

Root cause: the constructor sets the counter to N + 1, but then always starts the scheduler of epoch
0, from the initial rate. It does not choose the scheduler of the current epoch, and does not tell
the joined schedulers how far they are.

The report expects 0.9 after a resume from epoch 4. But ``last_epoch`` is the last epoch that is
done, so the next one has 0.81, as in the uninterrupted run and with torch's other schedulers. torch
2.15.0 still has the bug: as released, it is the buggy variant. The fixed variant is our remedy: the
constructor repeats the steps of the epochs that are done.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import followed, setting
from scenarios.torch import _resumed as resumed

FACTOR, WARMUP, GAMMA = 0.1, 3, 0.9
"""A constant fraction of the rate for some epochs, then the whole rate with a decay."""


def steps_repeated(function: Any) -> api.Edits:
    """After the start at epoch 0, repeat the steps of the epochs that are done."""
    code = "for _ in range(last_epoch + 1): self.step()"
    quiet = "with warnings.catch_warnings():\n    warnings.simplefilter('ignore')\n    " + code
    yield from followed(setting(function, "_last_lr"), "self.last_epoch = 0", quiet)


def plan(at: api.Position) -> api.Plan:
    """The rate of each step, by the optimizer and by the movement of the weights."""
    p = at.params
    start = 1 if at.launch == "whole" else p.done + 1
    facts = {"rate": api.SIZE, "moved": api.SIZE, "loss": api.SIZE, "epoch": api.COUNT}
    return {"step": api.Kind(facts, range(start, p.done + p.more + 1))}


def run(ctx: api.Context) -> None:
    """Train without an interruption, and save; or load, and train on."""
    import torch

    from scenarios.common import linear

    p = ctx.params
    whole = ctx.launch == "whole"
    torch.manual_seed(ctx.seed)
    model = linear.model().to(ctx.device)
    rows = next(linear.batches(ctx, model, 8, distance=2.0, noise=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=p.lr)
    file = ctx.folder / "checkpoint.pt"
    scheduler = None
    if not whole:
        saved = torch.load(file, map_location=ctx.device)
        model.load_state_dict(saved["model"])
        if p.resume == "state_dict":
            scheduler = _scheduler(optimizer, p.schedule, -1)
            scheduler.load_state_dict(saved["scheduler"])
        optimizer.load_state_dict(saved["optimizer"])
    if scheduler is None:
        scheduler = _scheduler(optimizer, p.schedule, -1 if whole else p.done - 1)
    for step in range(1 if whole else p.done + 1, p.done + p.more + 1):
        loss = linear.loss(model(rows[0]), rows[1]) / 100  # stable at a rate of 1
        optimizer.zero_grad()
        loss.backward()
        before = model.weight.detach().clone()
        optimizer.step()
        gradient: Any = model.weight.grad
        distance = ((before - model.weight.detach()) * gradient).sum() / gradient.square().sum()
        ctx.record(
            "step",
            step,
            rate=float(optimizer.param_groups[0]["lr"]),
            moved=float(distance),
            loss=float(loss.detach()),
            epoch=scheduler.last_epoch,
        )
        scheduler.step()
        if whole and step == p.done:
            states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: one.state_dict() for name, one in states.items()}, file)


def _scheduler(optimizer: Any, schedule: str, last_epoch: int) -> Any:
    """The schedule, for an optimizer that has done ``last_epoch``."""
    from torch.optim.lr_scheduler import ConstantLR, ExponentialLR, LambdaLR, SequentialLR

    if schedule == "lambda":
        return LambdaLR(
            optimizer,
            lambda epoch: FACTOR if epoch < WARMUP else GAMMA ** (epoch - WARMUP),
            last_epoch=last_epoch,
        )
    constant = ConstantLR(optimizer, FACTOR, total_iters=WARMUP)
    decay = ExponentialLR(optimizer, GAMMA)
    return SequentialLR(optimizer, [constant, decay], milestones=[WARMUP], last_epoch=last_epoch)


def detect(records: api.Records) -> api.Finding | None:
    """After the resume the rates are not those of the uninterrupted run, but start anew."""
    pairs = list(resumed.both(records))
    odd = resumed.otherwise_moved(records)
    faults = [one for one, whole in pairs if not api.near(one["rate"], whole["rate"], share=1e-6)]
    if not faults and not odd:
        return None
    rates = [one["rate"] for one, _ in pairs]
    expected = [whole["rate"] for _, whole in pairs]
    worst = max(abs(one["rate"] / whole["rate"] - 1) for one, whole in pairs)
    lines = [
        f"step {s['step']} moved by a rate of {s['moved']:.3g}, not {s['rate']:.3g}" for s in odd
    ]
    lines.append(f"the rates after the resume are {_listed(rates)}, not {_listed(expected)}")
    anew = _anew(records.params)
    late = [anew[0], *anew[:-1]]  # up to torch 2.6 the decay mistakes its first step for its start
    documented = any(
        all(api.near(rate, other, share=1e-6) for rate, other in zip(rates, way, strict=True))
        for way in (anew, late)
    )
    if documented:
        lines.append("exactly that follows if the rate starts anew and the counter does not")
    step = (faults or odd)[0]["step"]
    unit = "of the right rate"
    return api.Finding(
        "\n".join(lines), step, magnitude=worst, unit=unit, documented=documented and not odd
    )


def _anew(p: Any) -> list[float]:
    """The rates if epoch 0 is started, and the schedulers then take turns by the counter."""
    rate, rates = p.lr * FACTOR, []
    for epoch in range(p.done, p.done + p.more):
        if epoch > p.done:
            rate = p.lr if epoch == WARMUP else rate * GAMMA if epoch > WARMUP else rate
        rates.append(rate)
    return rates


def _listed(rates: list[float]) -> str:
    return ", ".join(f"{rate:.4g}" for rate in rates)


def exercised(records: api.Records) -> api.Exercise:
    """A SequentialLR that was resumed after its first scheduler's epochs got last_epoch."""
    p = records.params
    text = f"{p.schedule} was resumed after {p.done} epochs by {p.resume}"
    by_counter = (p.schedule, p.resume) == ("sequential", "last_epoch")
    return api.Exercise.of(by_counter and p.done > WARMUP, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The counter is right, and the loss falls on."""
    pairs = list(resumed.both(records))
    losses = [one["loss"] for one, _ in pairs]
    return {
        "the scheduler's last_epoch is wrong": any(a["epoch"] != b["epoch"] for a, b in pairs),
        "the loss rises after the resume": losses != sorted(losses, reverse=True),
        "the first loss after the resume is another": pairs[0][0]["loss"] != pairs[0][1]["loss"],
    }


picture = resumed.rates("with the bug the resumed training begins anew at the first epoch's rate")
