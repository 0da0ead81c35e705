"""With tensor parallelism, accelerate replaces parameters, but the optimizer keeps the old ones.

``prepare()`` replaces each parameter that is not sharded with a DTensor that all ranks have: norms,
embeddings, often the head. An optimizer that was made earlier, as in accelerate's examples, keeps
the old parameters. So these parameters of the model never move, and nothing reports it. The sharded
ones train, and the loss falls. If nothing was sharded before, nothing trains at all.

Root cause: ``_prepare_tp`` sets the new parameters on the model's modules and returns the optimizer
as it is. The fix, in 1.12.0, gives the optimizer the new ones, but only if the model has no sharded
parameter: otherwise 1.12.0 raises a KeyError. From 1.13.0 on (3945), accelerate replaces no
parameters unless FSDP2 is used, too.
"""

from __future__ import annotations

from harness.bugs import api
from scenarios.common import plain_loss, usual_checks

TOLERANCE = 1e-3
"""How far a step may be from the right gradient, as a part of it. Rounding moves it by 1e-5."""

FLOOR = 1e-3
"""A gradient that is smaller than this part of the largest one counts as that large."""

LINEAR, NOTHING = "linear", "nothing"


def plan(at: api.Position) -> api.Plan:
    """How ``prepare`` changed each parameter, and how far each step moved it."""
    names = api.alike(api.many(api.LINE))
    step = {
        "loss": api.alike(api.NUMBER),
        "reference_loss": api.alike(api.NUMBER),
        "gradient": api.alike(api.by_name(api.SIZE, least=1)),
        "ratio": api.alike(api.by_name(api.NUMBER, least=1)),
        "aside": api.alike(api.by_name(api.SIZE, least=1)),
    }
    fields = {"first": api.alike(api.FLAG), "sharded": names, "replaced": names, "owned": names}
    return {"prepared": api.Kind(fields), "step": api.Kind(step, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a LLaMA of one layer; compare each parameter's movement with plain torch's."""
    from scenarios.accelerate.tp_stale_optimizer import training

    training.train(ctx)


def _strays(step: api.Record) -> list[str]:
    """The parameters that did not take the right step."""
    return [name for name in step["gradient"] if not _took(step, name, 1.0)]


def _took(step: api.Record, name: str, times: float) -> bool:
    """Whether a step moved this parameter by so many times its right gradient."""
    norm = step["gradient"][name]
    least = FLOOR * max(step["gradient"].values()) / max(norm, 1e-30)
    away = abs(step["ratio"][name] - times) + step["aside"][name]
    return api.near(away, 0.0, within=TOLERANCE * max(1.0, least))


def detect(records: api.Records) -> api.Finding | None:
    """Exactly the parameters that prepare() replaced, and that the optimizer does not have, did not
    move at all."""
    steps = records.of("step")
    failure = next((step for step in steps if _strays(step)), None)
    if failure is None:
        return None
    setup = records.of("prepared", 0)[0]
    stale = set(failure["gradient"]) - set(setup["sharded"])
    documented = stale == set(setup["replaced"]) and not stale & set(setup["owned"])
    only = all(
        set(_strays(step)) == stale and all(_took(step, name, 0.0) for name in stale)
        for step in steps
    )
    lost, whole = _strays(failure), len(failure["gradient"])
    return api.Finding(
        f"{len(lost)} of {whole} parameters do not move: {', '.join(lost[:4])}"
        + (" ..." if lost[4:] else ""),
        step=failure["step"],
        parameters=tuple(lost),
        ranks=records.ranks,
        magnitude=len(lost) / whole,
        unit="of the parameters do not move",
        documented=documented and only,
    )


def exercised(records: api.Records) -> api.Exercise:
    """prepare() got a model of which some parameters were not sharded, after its optimizer was
    made."""
    setup, step = records.of("prepared", 0)[0], records.of("step", 0)[0]
    whole = len(step["gradient"])
    count, when = whole - len(setup["sharded"]), "after" if setup["first"] else "before"
    text = (
        f"{count} of {whole} parameters were not sharded when prepare() got the model, {when} the "
        "optimizer was made"
    )
    return api.Exercise.of(count > 0 and setup["first"], text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The loss is plain torch's at these weights, and falls if anything trains."""
    losses = plain_loss.loss_unlike_reference(records)
    if records.params.sharded == NOTHING:
        return losses
    return losses | usual_checks.loss_ends_higher(records)


picture = api.bars(
    "How much of its gradient each parameter took",
    "with the bug, parameters that accelerate replaced take nothing",
    lambda records: (
        (name.removeprefix("model."), float(ratio))
        for name, ratio in records.of("step", 0)[0]["ratio"].items()
    ),
    "times the right gradient",
    {"right": 1.0},
)
