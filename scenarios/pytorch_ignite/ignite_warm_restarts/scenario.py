"""ignite's LRScheduler around torch's CosineAnnealingWarmRestarts never changes the learning rate.

A user wraps one of torch's schedulers in ``ignite.handlers.LRScheduler`` and attaches it to the
trainer. With ``CosineAnnealingWarmRestarts`` the rate stays what it was before the first step: no
annealing and no restart, for the whole training. No error is raised. Other schedulers of torch
work.

Root cause: the wrapper counts ``last_epoch`` on and calls the scheduler's ``get_lr``. That one
computes the rate from ``T_cur``, which only torch's own ``step`` moves, and the wrapper does not
call ``step``. The fix has a class of its own for this scheduler, which moves ``T_cur``. Its first
step has the rate of torch's second one. With torch 2.13.0 ExponentialLR in the wrapper has that,
too; it is not judged here.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def plan(at: api.Position) -> api.Plan:
    """For each step: its rate, torch's rate for it and for the next step, and the loss."""
    facts = dict.fromkeys(("rate", "torch", "next", "loss"), api.SIZE)
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train with ignite's wrapper; take the rates of the same scheduler in plain torch, too."""
    import torch
    from ignite.engine import Engine, Events
    from ignite.handlers.param_scheduler import LRScheduler

    from scenarios.common import linear

    p = ctx.params
    model = linear.model().to(ctx.device)
    rows = linear.batches(ctx, model, 8, distance=2.0, noise=0.1)
    ours, its = (torch.optim.SGD(model.parameters(), p.lr) for _ in range(2))
    plain, wrapped = (_scheduler(p, optimizer) for optimizer in (ours, its))
    rates = []
    for _ in range(p.steps + 1):
        rates.append(float(ours.param_groups[0]["lr"]))
        ours.step()
        plain.step()

    def update(engine: Any, batch: Any) -> float:
        loss = linear.loss(model(batch[0]), batch[1]) / 100  # stable at a rate of 1
        its.zero_grad()
        loss.backward()
        its.step()
        return float(loss)

    def completed(engine: Any) -> None:
        step, rate = engine.state.iteration, float(its.param_groups[0]["lr"])
        references = {"torch": rates[step - 1], "next": rates[step]}
        ctx.record("step", step, rate=rate, **references, loss=engine.state.output)

    engine = Engine(update)
    engine.add_event_handler(Events.ITERATION_STARTED, LRScheduler(wrapped))
    engine.add_event_handler(Events.ITERATION_COMPLETED, completed)
    engine.run([next(rows) for _ in range(p.steps)], max_epochs=1)


def _scheduler(p: Any, optimizer: Any) -> Any:
    """A new scheduler of torch."""
    from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, ExponentialLR

    if p.schedule == "exponential":
        return ExponentialLR(optimizer, 0.9)
    return CosineAnnealingWarmRestarts(optimizer, T_0=p.period)


def detect(records: api.Records) -> api.Finding | None:
    """The rate of each step is that before the first one, and not torch's."""
    steps = records.of("step")
    for reference in ("torch", "next"):  # an order that begins with the second rate is accepted
        if all(api.near(step["rate"], step[reference], within=1e-6) for step in steps):
            return None
    rates, expected = ([step[n] for step in steps] for n in ("rate", "torch"))
    listed = [", ".join(f"{rate:.3g}" for rate in found) for found in (rates, expected)]
    return api.Finding(
        f"the rates are {listed[0]}; torch's scheduler gives {listed[1]}",
        step=next(s["step"] for s in steps if not api.near(s["rate"], s["torch"], within=1e-6)),
        magnitude=max(abs(a - b) for a, b in zip(rates, expected, strict=True)),
        unit="of the learning rate",
        documented=all(api.near(rate, records.params.lr, within=1e-9) for rate in rates),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The loss falls."""
    losses = [step["loss"] for step in records.of("step")]
    return {"the loss does not fall": losses[-1] >= losses[0]}


picture = api.lines(
    "The learning rate of each step",
    "with the bug the rate never changes",
    lambda step: float(step["rate"]),
    y="learning rate",
    stairs=True,
)
