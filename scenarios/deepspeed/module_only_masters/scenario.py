"""In bf16, weights that were loaded with load_module_only are lost after the first step.

``load_checkpoint(load_module_only=True, load_optimizer_states=False)`` is the way to begin a
fine-tuning: it loads the weights without the optimizer. The bf16 weights are loaded, and the loss
of the first step is right. But the optimizer steps its fp32 master weights, which still have the
random values from before the load, and then overwrites the loaded weights with them. So the
fine-tuning starts from random weights.

Root cause: after a load of the module alone, the engine copies the weights into the masters only
``if self.fp16_enabled()``. The fix removes the condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from harness.bugs import api
from scenarios.deepspeed import _loaded as loaded_weights

if TYPE_CHECKING:
    from torch import Tensor

ROUNDED = 2.0**-8
"""How far (as a fraction) a master may be from its weight, which is rounded to bf16."""


def plan(at: api.Position) -> api.Plan:
    """The losses before the save; after the load, how far masters are; then one step."""
    if at.launch == "train":
        return {"step": api.Kind({"loss": api.NUMBER}, api.each(at.params.steps))}
    loaded = {
        "differing": api.alike(api.COUNT),
        "masters_off": api.alike(api.SIZE),
        "masters_moved": api.alike(api.SIZE),
        "apart": api.alike(api.SIZE),
    }
    return {"loaded": api.Kind(loaded), "step": api.Kind({"loss": api.NUMBER}, api.each(2))}


def run(ctx: api.Context) -> None:
    """Train and save; or load the weights alone, and train on."""
    from scenarios.deepspeed import _masters as masters
    from scenarios.deepspeed import _regression as regression
    from scenarios.deepspeed import _restored as restored

    p = ctx.params
    precision = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    with ctx.phase("init"):
        engine = restored.engine(
            ctx,
            p.lr,
            zero_optimization={"stage": int(p.precision == "bf16")},
            **(precision if p.precision == "bf16" else {}),
        )
    data = restored.rows(ctx, p.steps + 2)
    folder = str(ctx.folder / "checkpoint")
    if ctx.launch == "train":
        for number, rows in enumerate(data[: p.steps], 1):
            ctx.record("step", number, loss=regression.step(ctx, engine, rows))
        loaded_weights.saved_weights(ctx.folder, ctx.rank, engine.module)
        engine.save_checkpoint(folder, tag=restored.TAG)
        return
    fresh = masters.full(engine)
    engine.load_checkpoint(
        folder,
        tag=restored.TAG,
        load_module_only=True,
        load_optimizer_states=False,
        load_lr_scheduler_states=False,
    )
    if p.refresh:
        engine.optimizer.refresh_fp32_params()
    weights = loaded_weights.saved_weights(ctx.folder, ctx.rank)
    after = masters.full(engine)
    ctx.record(
        "loaded",
        differing=loaded_weights.differing(engine.module, weights),
        masters_off=_apart(after, weights),
        masters_moved=_apart(after, fresh),
        apart=_apart(weights, fresh),
    )
    for number, rows in enumerate(data[p.steps :], 1):
        ctx.record("step", number, loss=regression.step(ctx, engine, rows))


def _apart(ones: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """The greatest difference between tensors of the same name."""
    return max(float((one.float() - others[n].float()).abs().max()) for n, one in ones.items())


def detect(records: api.Records) -> api.Finding | None:
    """The weights are those of the save, but the masters are those from before the load."""
    (loaded, *_) = records.of("loaded")
    if lost := loaded_weights.weights_lost(records):
        return lost
    if loaded["masters_off"] <= ROUNDED:
        return None
    before, after = (step["loss"] for step in records.of("step", 0)[-2:])
    return api.Finding(
        f"the masters are up to {loaded['masters_off']:.3g} from the loaded weights; the loss is "
        f"{before:.4g} at the first step and {after:.4g} at the next",
        step=0,
        ranks=records.ranks,
        magnitude=loaded["masters_off"],
        unit="between a loaded weight and its master",
        documented=loaded["masters_moved"] == 0,
    )


def exercised(records: api.Records) -> api.Exercise:
    """There were masters, and the checkpoint had other weights than the new engine."""
    precision, apart = records.params.precision, records.of("loaded")[0]["apart"]
    in_bf16 = api.Exercise.needs(precision == "bf16", f"the precision was {precision}")
    return in_bf16 & api.Exercise.of(
        apart > ROUNDED,
        f"the saved weights were up to {apart:.3g} from those of the new engine",
        "the saved weights were those of the new engine",
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """All weights are loaded, and the first loss after the load is near the last before it."""
    first_loss, *losses = (step["loss"] for step in records.of("step", 0))
    above = losses[records.params.steps - 1] > first_loss
    return loaded_weights.weights_differ(records) | {
        "the first loss after the load is above the first of the training": above
    }


picture = api.bars(
    "Distance of the masters from the loaded weights",
    "with the bug the masters are not the weights that were loaded",
    lambda records: [("masters", float(records.of("loaded")[0]["masters_off"]))],
    "of a weight",
)
