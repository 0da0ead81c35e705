"""In bf16 without ZeRO, a checkpoint has no optimizer state: a resumed Adam starts from nothing.

The weights are saved and loaded. Adam's moments and its count of steps are not saved, and nothing
reports it. After the load Adam has the count and the moments of a new engine: its moments are 0. So
the loss differs from that of a run without a stop.

Root cause: the engine checks whether ZeRO or bf16 is on, to decide who saves the optimizer's state.
bf16 used to mean BF16_Optimizer, which saves its own state. But without ZeRO, newer releases wrap
the optimizer in another class, and nothing saves the state. The fix checks the kind of the
optimizer.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.deepspeed import _loaded as loaded_weights

MORE = 2
"""Steps after the save, in both launches."""


def plan(at: api.Position) -> api.Plan:
    """Adam's state at the save, or before and after the load; then the steps. With BF16_Optimizer,
    each rank has a part of the state."""
    state = api.held({"count": api.COUNT, "mean": api.SIZE, "square": api.SIZE})
    step = api.Kind({"loss": api.NUMBER}, api.each(MORE))
    if at.launch == "train":
        return {"saved": api.Kind({"adam": state}), "step": step}
    loaded = {"fresh": state, "adam": state, "differing": api.alike(api.COUNT)}
    return {"loaded": api.Kind(loaded), "step": step}


def run(ctx: api.Context) -> None:
    """Train, save and train on; or load and train on."""
    from scenarios.deepspeed import _regression as regression
    from scenarios.deepspeed import _restored as restored

    p = ctx.params
    with ctx.phase("init"):
        bf16 = {"enabled": p.precision == "bf16"}
        engine = restored.engine(ctx, p.lr, bf16=bf16, zero_optimization={"stage": 0})
    data = restored.rows(ctx, p.steps + MORE)
    if ctx.launch == "train":
        for rows in data[: p.steps]:
            regression.step(ctx, engine, rows)
        ctx.record("saved", adam=_adam(engine))
        loaded_weights.saved_weights(ctx.folder, ctx.rank, engine.module)
        engine.save_checkpoint(str(ctx.folder / "checkpoint"), tag=restored.TAG)
    else:
        fresh = _adam(engine)
        engine.load_checkpoint(str(ctx.folder / "checkpoint"), tag=restored.TAG)
        weights = loaded_weights.saved_weights(ctx.folder, ctx.rank)
        differing = loaded_weights.differing(engine.module, weights)
        ctx.record("loaded", fresh=fresh, adam=_adam(engine), differing=differing)
    for number, rows in enumerate(data[p.steps :], 1):
        ctx.record("step", number, loss=regression.step(ctx, engine, rows))


def _adam(engine: Any) -> dict[str, float]:
    """Adam's count of steps, and the norms of its moments; 0 if it has no state."""
    base = engine.optimizer
    while hasattr(base, "optimizer"):
        base = base.optimizer
    states = list(base.state.values())

    def norm(name: str) -> float:
        return float(sum(float(s[name].double().norm()) ** 2 for s in states if name in s)) ** 0.5

    count = max((int(state["step"]) for state in states if "step" in state), default=0)
    return {"count": count, "mean": norm("exp_avg"), "square": norm("exp_avg_sq")}


def detect(records: api.Records) -> api.Finding | None:
    """The weights are those of the save, and Adam's state is that of a new engine."""
    saved, loaded = (records.of(kind) for kind in ("saved", "loaded"))
    if lost := loaded_weights.weights_lost(records):
        return lost
    saved_adam, loaded_adam = ([state["adam"] for state in states] for states in (saved, loaded))
    if saved_adam == loaded_adam:
        return None
    return api.Finding(
        f"Adam was saved after {saved_adam[0]['count']} steps, with a first moment of "
        f"{saved_adam[0]['mean']:.4g}; loaded, it has counted {loaded_adam[0]['count']}, and its "
        f"first moment is {loaded_adam[0]['mean']:.4g}",
        step=0,
        ranks=records.ranks,
        magnitude=float(saved_adam[0]["count"] - loaded_adam[0]["count"]),
        unit="steps of Adam lost",
        documented=loaded_adam == [state["fresh"] for state in loaded]
        and all(state == states[0] for states in (saved_adam, loaded_adam) for state in states),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The training was in bf16, and Adam had a state when it was saved."""
    saved, precision = records.of("saved")[0]["adam"], records.params.precision
    in_bf16 = api.Exercise.needs(precision == "bf16", f"the precision was {precision}")
    text = f"Adam was saved after {saved['count']} steps"
    return in_bf16 & api.Exercise.of(saved["mean"] > 0, text, "Adam had no state")


insufficient_checks = loaded_weights.weights_differ


def _counts(records: api.Records) -> list[tuple[str, float]]:
    places = {"at the save": "saved", "after the load": "loaded"}
    return [(n, float(records.of(kind)[0]["adam"]["count"])) for n, kind in places.items()]


picture = api.bars(
    "Steps that Adam has counted",
    "with the bug Adam has counted no step after the load",
    _counts,
    "steps",
)
