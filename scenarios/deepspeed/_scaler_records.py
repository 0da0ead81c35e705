"""What DeepSpeed's loss scaler did with each step, as ranks record it; ``_loss_scale`` judges it.

A rank records ``setup`` once, with the scaler's settings as upstream has them. Every ``step`` has
the loss, the loss scale, the count of skipped steps, and for each watched tensor its largest
magnitude and its headroom: the bits to the largest fp16 number. ``exception`` is the documented
exception, if it ends the run. A number that JSON cannot represent is written by its name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.bugs import api
from scenarios.deepspeed import _first_steps as begun

GIVEN_UP = "Current loss scale already at minimum - cannot decrease scale anymore. Exiting run."
"""What DeepSpeed raises, as a builtin Exception; it is the same from 0.12.6 to 0.19.8."""

SCALER = api.held(
    {
        "optimizer": api.matching(r"[A-Za-z_]\w*", "name of a class"),
        "dynamic": api.FLAG,
        "initial": api.SIZE,
        "minimum": api.maybe(api.SIZE),
        "hysteresis": api.maybe(api.COUNT),
        "consecutive": api.maybe(api.FLAG),
        "window": api.maybe(api.COUNT),
    }
)
CORPUS = api.held(
    {"sha256": api.matching("[0-9a-f]{64}", "SHA-256"), "bytes": api.COUNT, "files": api.COUNT}
)
STEP = {
    "loss": api.MAY_OVERFLOW,
    "grad_norm": api.alike(api.maybe(api.MAY_OVERFLOW)),
    "loss_scale": api.SIZE,
    "skipped": api.COUNT,
    "lr": api.SIZE,
    "largest": api.by_name(api.MAY_OVERFLOW, least=1),
    "headroom": api.by_name(api.MAY_OVERFLOW, least=1),
    "weights": api.SIZE,
}


def plan(at: api.Position) -> api.Plan:
    """The scaler's settings; then all steps, or those until the documented exception; and the
    comparison of the first steps with plain torch."""
    steps = api.each(at.params.steps)
    raised = {"type": api.exactly("Exception"), "text": api.exactly(GIVEN_UP)}
    return {
        "setup": api.Kind({"corpus": api.alike(CORPUS), "scaler": api.alike(SCALER)}),
        "step": api.Kind(STEP, steps),
        "exception": api.Kind(raised, steps, ends=True),
        **begun.plan(at.params.steps),
    }


class Watch:
    """Records what DeepSpeed does with each step; ``headroom`` has seen the forward pass."""

    def __init__(
        self, ctx: api.Context, engine: Any, headroom: Any, first_steps: begun.Watch, corpus: Any
    ) -> None:
        self.ctx, self.engine, self.headroom, self.first = ctx, engine, headroom, first_steps
        ctx.record("setup", corpus=corpus, scaler=_settings(engine.optimizer))

    def begin(self, number: int, batch: Any) -> None:
        """Start a step on a batch; plain torch takes the first steps, too."""
        if number <= begun.STEPS:
            self.first.scale = _scale(self.engine.optimizer)
            self.first.begin(batch)

    def step(self, number: int, loss: Any) -> bool:
        """Let the engine apply its gradients; False if DeepSpeed has given up."""
        raised = _documented(self.engine.step)
        if number <= begun.STEPS:
            self.ctx.record("begun", number, **self.first.facts(float(loss.detach())))
        norm = self.engine.get_global_grad_norm()
        readings = self.headroom.step()
        self.ctx.record(
            "step",
            number,
            loss=api.named(float(loss.detach())),
            grad_norm=None if norm is None else api.named(float(norm)),
            loss_scale=_scale(self.engine.optimizer),
            skipped=self.engine.skipped_steps,
            lr=self.engine.get_lr()[0],
            largest={reading.name: api.named(reading.largest) for reading in readings},
            headroom={reading.name: api.named(round(reading.bits, 3)) for reading in readings},
            weights=sum(
                float(p.detach().double().abs().sum()) for p in self.first.parameters.values()
            ),
        )
        if raised is not None:
            self.ctx.record("exception", number, type=type(raised).__name__, text=str(raised))
        return raised is None


def _documented(step: Callable[[], Any]) -> Exception | None:
    """The documented exception, if the step ends with it; any other exception is raised."""
    try:
        step()
    except Exception as error:
        if type(error) is not Exception or str(error) != GIVEN_UP:
            raise
        return error
    return None


def _settings(optimizer: Any) -> dict[str, Any]:
    """The loss scaler's settings as upstream has them; its three classes name them differently."""
    places = (getattr(optimizer, name, None) for name in ("loss_scaler", "loss_scale_config"))
    holder = next((place for place in places if place is not None), optimizer)

    def setting(*names: str) -> Any:
        return next((getattr(holder, name) for name in names if hasattr(holder, name)), None)

    return {
        "optimizer": type(optimizer).__name__,
        # Before 0.8 a dynamic scaler does not say that it is one; but only it has a window.
        "dynamic": bool(setting("dynamic", "dynamic_loss_scale", "scale_window")),
        "initial": _scale(optimizer),
        "minimum": setting("min_scale", "min_loss_scale"),
        "hysteresis": setting("delayed_shift"),
        "consecutive": setting("consecutive_hysteresis"),
        "window": setting("scale_window"),
    }


def _scale(optimizer: Any) -> float:
    """The scale of the loss; BF16_Optimizer has none."""
    return float(getattr(optimizer, "loss_scale", 1.0))
