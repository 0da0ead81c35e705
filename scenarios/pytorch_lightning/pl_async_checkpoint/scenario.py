"""AsyncCheckpointIO copies nothing: the file has the weights of a later step than it says.

This affects users of Lightning's ``AsyncCheckpointIO``, which writes checkpoints in a thread while
the training goes on. If the thread is late, the file has the weights of a later step, or a mixture
of several steps, but the counters, the schedule and the place in the data of the step at which it
was saved. A run that is resumed from it does these steps a second time.

Root cause: ``save_checkpoint`` hands the checkpoint to the thread as it is. Its tensors are those
of the model, which the optimizer changes in place. The fix copies them first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.bugs import api


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.save + params.late > params.steps:
        raise ValueError("scenario.save + scenario.late must not exceed scenario.steps")


def plan(at: api.Position) -> api.Plan:
    """The weight after each step, and what the file says."""
    after = api.many(api.NUMBER, at.params.steps)
    return {"saved": api.Kind({"after": after, "weight": api.NUMBER, "at": api.COUNT})}


def run(ctx: api.Context) -> None:
    """Train and save with Lightning; read the file."""
    from scenarios.pytorch_lightning.pl_async_checkpoint import training

    after, file = training.fit(ctx)
    weight = file["state_dict"]["weight"].item()
    ctx.record("saved", after=after, weight=weight, at=file["global_step"])


def detect(records: api.Records) -> api.Finding | None:
    """The file says the step of the save, and has the weight of the step after which it was
    written."""
    p, saved = records.params, records.of("saved")[0]
    after = saved["after"]
    if saved["at"] != p.save or len(set(after)) < len(after):
        return api.Finding("the file or the training has other steps", documented=False)
    if api.near(saved["weight"], after[p.save - 1], share=1e-6):
        return None
    late = p.save + p.late
    return api.Finding(
        f"saved after step {p.save} with the weight {after[p.save - 1]:.4g}; the file says step "
        f"{saved['at']}, and its weight is {saved['weight']:.4g}, that after step {late} is "
        f"{after[late - 1]:.4g}",
        step=p.save,
        ranks=records.ranks,
        magnitude=float(p.late),
        unit="steps too late",
        documented=api.near(saved["weight"], after[late - 1], share=1e-6),
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The file is complete, and says the right step."""
    differs = any(saved["at"] != records.params.save for saved in records.of("saved"))
    return {"the file says another step than that of the save": differs}


def _weights(records: api.Records) -> Iterator[tuple[str, float]]:
    saved = records.of("saved")[0]
    yield "when it was saved", saved["after"][records.params.save - 1]
    yield "in the file", saved["weight"]


picture = api.bars(
    "The weight when it was saved, and in the file",
    "with the bug the file has the weight of a later step",
    _weights,
    "weight",
)
