"""heavyball's clip functions give gradients of norm 1 instead of the threshold, and shrink others.

``l2_clip_`` and ``rmsnorm_clip_`` clip each gradient by its norm, or by its root mean square. With
a threshold of 1, the default, they are right. With another one, a gradient above the threshold gets
a norm of 1: it is clipped ten times too weakly at 0.1. A gradient below the threshold is divided by
the threshold, although it should stay as it is. Training goes on, with the learning rate of each
tensor changed by a factor; nothing shows it unless the norms are printed after clipping.

Root cause: ``_compilable_l2_clip_`` and ``_compilable_rmsnorm_clip_`` divide by the larger of norm
and threshold, and do not multiply by the threshold. Since 2.0.0 they do.
"""

from __future__ import annotations

from harness.bugs import api

NORMS = (0.02, 0.5, 5.0, 50.0)
"""Of the gradients before clipping, in each step."""
CLIP = {"l2": "l2_clip_", "rms": "rmsnorm_clip_"}
"""heavyball's functions; each clips by another norm."""
ELEMENTS = 16


def plan(at: api.Position) -> api.Plan:
    """The norm of each gradient before and after clipping."""
    facts = {"before": api.SIZE, "after": api.SIZE, "cosine": api.NUMBER}
    return {"gradient": api.Kind(facts, api.each(len(NORMS)))}


def run(ctx: api.Context) -> None:
    """Clip a gradient of each norm with heavyball, without torch.compile."""
    import torch
    from heavyball import utils

    torch.manual_seed(ctx.seed)
    utils.compile_mode = None  # heavyball's own switch
    size = 1 if ctx.params.norm == "l2" else ELEMENTS**0.5
    for number, norm in enumerate(NORMS, 1):
        gradient = torch.randn(ELEMENTS, device=ctx.device)
        gradient *= norm * size / gradient.norm()
        clone = gradient.clone()
        (clipped,) = getattr(utils, CLIP[ctx.params.norm])([clone], ctx.params.threshold)
        before, after = float(gradient.norm()) / size, float(clipped.norm()) / size
        cosine = float(torch.cosine_similarity(gradient, clipped, dim=0))
        ctx.record("gradient", number, before=before, after=after, cosine=cosine)


def detect(records: api.Records) -> api.Finding | None:
    """Each gradient was divided by the larger of its norm and the threshold, and not multiplied by
    the threshold."""
    limit, gradients = records.params.threshold, records.of("gradient")
    faults = [one for one in gradients if not _near(one, min(one["before"], limit))]
    if not faults:
        return None
    documented = all(_near(one, one["before"] / max(one["before"], limit)) for one in gradients)
    lines = [
        f"threshold {limit:g}: a gradient of norm {one['before']:.3g} has a norm of "
        f"{one['after']:.3g} after clipping, right: {min(one['before'], limit):.3g}"
        for one in faults
    ]
    lines += ["exactly that follows if the threshold is forgotten as a factor"] * documented
    size = max(abs(one["after"] / min(one["before"], limit) - 1) for one in faults)
    text, unit = "\n".join(lines), "of the right norm"
    return api.Finding(text, faults[0]["step"], (), (0,), size, unit, documented=documented)


def _near(gradient: api.Record, norm: float) -> bool:
    return api.near(gradient["after"], norm, share=1e-3) and api.near(
        gradient["cosine"], 1, within=1e-3
    )


picture = api.bars(
    "The norm of each gradient after clipping",
    "with the bug the norm is 1 or less whatever the threshold; right is at most the threshold",
    lambda records: ((f"norm {one['before']:.2g}", one["after"]) for one in records.of("gradient")),
    "norm after clipping",
)
