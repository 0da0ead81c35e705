"""With FSDP, a model whose optimizer was made before ``prepare`` never trains.

FSDP of version 1 puts the parameters of a model into flat ones, unless ``use_orig_params`` is True.
An optimizer that was made earlier, as in accelerate's own examples, keeps the parameters that are
no longer in the model. They get no gradients, so ``optimizer.step()`` changes nothing and raises
nothing. The loss still varies with the rows, so that it looks like a noisy training. The default of
accelerate's FSDP plugin is ``use_orig_params=False``.

Root cause: up to 0.24.1, ``prepare`` made the optimizer anew with the parameters of the wrapped
model. 0.25.0 removed this (2177), because it is not needed if ``use_orig_params`` is True. Nothing
checks that it is. FSDP2 is not affected: there ``prepare`` gives the optimizer the new parameters.
"""

from __future__ import annotations

from harness.bugs import api

TOLERANCE = 1e-4
"""How far a number may be from plain torch's, as a part of it. Rounding moves it by 1e-6."""


def plan(at: api.Position) -> api.Plan:
    """What ``prepare`` did to the parameters; what each step moved, beside plain torch."""
    prepared = {"flat": api.alike(api.FLAG), "stale": api.alike(api.FLAG)}
    names = ("loss", "reference_loss", "gradient", "moved", "reference_moved")
    step = {name: api.alike(api.SIZE) for name in names}
    return {"prepared": api.Kind(prepared), "step": api.Kind(step, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a small MLP under FSDP, and the same in plain torch on the rows of all ranks."""
    from scenarios.accelerate.fsdp_stale_optimizer import training

    training.train(ctx)


def _is_right(step: api.Record) -> bool:
    """Whether plain torch has the same loss, and moves the weights as far."""
    return all(
        api.near(step[name], step[f"reference_{name}"], share=TOLERANCE)
        for name in ("loss", "moved")
    )


def detect(records: api.Records) -> api.Finding | None:
    """The optimizer has no parameter of the model, and no step moves the model, though each step
    has a gradient."""
    steps = records.of("step", 0)
    failure = next((step for step in steps if not _is_right(step)), None)
    if failure is None:
        return None
    still = [step for step in steps if step["moved"] == 0 and step["gradient"] > 0]
    stale = records.of("prepared", 0)[0]["stale"]
    return api.Finding(
        f"{len(still)} of {len(steps)} steps do not move the model, and the loss at the end is "
        f"{steps[-1]['loss']:.3g}, right {steps[-1]['reference_loss']:.3g}",
        step=failure["step"],
        ranks=records.ranks,
        magnitude=len(still) / len(steps),
        unit="of the steps do not move the model",
        documented=stale and len(still) == len(steps),
    )


def exercised(records: api.Records) -> api.Exercise:
    """FSDP made the parameters flat, after the optimizer was made."""
    flat, optimizer_first = records.of("prepared", 0)[0]["flat"], records.params.optimizer_first
    when = "before" if optimizer_first else "after"
    text = (
        f"the optimizer was made {when} prepare(), which made "
        f"{'flat parameters' if flat else 'no flat parameters'}"
    )
    return api.Exercise.of(flat and optimizer_first, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The gradients are computed, and only the optimizer does not see them."""
    steps = records.of("step")
    return {"a step has no gradient": any(step["gradient"] == 0 for step in steps)}


picture = api.lines(
    "The loss of each step",
    "with the bug the loss only varies with the rows",
    lambda step: step["loss"],
    y="loss",
)
