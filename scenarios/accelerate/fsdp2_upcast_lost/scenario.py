"""Under FSDP2 with bf16 mixed precision, a model loaded in bf16 has no fp32 master weights.

This affects anyone who loads a model in bf16, the type of most published models, and trains it with
FSDP2 and ``mixed_precision="bf16"``. accelerate warns that it has upcast the parameters to fp32,
but the weights and the optimizer's state stay in bf16. A bf16 number has 8 significant bits, so an
update below about 1/500 of a weight is rounded away. Here, at a learning rate of 1e-5, 98 % of the
weights never move. The loss still falls a little.

Root cause: ``fsdp2_prepare_model`` assigns the upcast tensor to a local variable
(``param = param.to(torch.float32)``), and the model keeps its own. Up to 1.12.0 it assigned to
``param.data``. The fix does that again, before the model is sharded.
"""

from __future__ import annotations

from functools import partial

from harness.bugs import api
from scenarios.common import plain_loss, usual_checks

TOLERANCE = 2e-2
"""How far (as a fraction) a gradient that is computed in bf16 may be from plain torch's in fp32."""

BF16, FP32 = "bfloat16", "float32"
DTYPE = api.one_of(BF16, FP32)


def plan(at: api.Position) -> api.Plan:
    """What was prepared; and each step: its gradient, and where it led."""
    dtype = api.alike(DTYPE)
    prepared = {"loaded": dtype, "forward": dtype, "own": api.COUNT, "whole": api.COUNT}
    step = {
        **dict.fromkeys(("loss", "reference_loss"), api.NUMBER),
        **dict.fromkeys(("from_fp32", "from_bf16", "moved"), api.SIZE),
        **{"ratio": api.alike(api.NUMBER), "off": api.alike(api.SIZE)},
        **dict.fromkeys(("weights", "state"), dtype),
    }
    return {"prepared": api.Kind(prepared), "step": api.Kind(step, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a linear map with FSDP2 and AdamW; compare each step with torch's AdamW."""
    from scenarios.accelerate.fsdp2_upcast_lost import loop

    loop.train(ctx)


def detect(records: api.Records) -> api.Finding | None:
    """Steps do not lead where AdamW leads with fp32 weights. It counts only if the gradients are
    right, and if each step leads exactly where AdamW leads with weights and state in bf16."""
    steps = records.of("step")
    faults = [step for step in steps if step["from_fp32"] > TOLERANCE]
    odd = [
        s for s in steps if not api.near(s["ratio"], 1, within=TOLERANCE) or s["off"] > TOLERANCE
    ]
    if odd:
        text = f"a gradient is {odd[0]['ratio']:.4g} times plain torch's, {odd[0]['off']:.2g} aside"
        return api.Finding(text, odd[0]["step"], documented=False)
    if not faults:
        return None
    in_bf16 = all(
        step["weights"] == step["state"] == BF16 and step["from_bf16"] <= TOLERANCE
        for step in steps
    )
    still = 1 - min(records.of("step", rank)[-1]["moved"] for rank in records.ranks)
    return api.Finding(
        f"the weights are {steps[0]['weights']}, AdamW's state is {steps[0]['state']}: after "
        f"{records.params.steps} steps up to {still:.1%} of a rank's weights have never moved",
        faults[0]["step"],
        ranks=tuple(sorted({step["rank"] for step in faults})),
        magnitude=still,
        unit="of the weights have never moved",
        documented=in_bf16 and len(faults) == len(steps),
    )


def exercised(records: api.Records) -> api.Exercise:
    """Each rank had a part of the weights, which were loaded in bf16 and computed in bf16."""
    setups = records.of("prepared")
    loaded, forward = setups[0]["loaded"], setups[0]["forward"]
    parts = [f"{one['own']} of {one['whole']}" for one in setups]
    sharded = all(0 < one["own"] < one["whole"] for one in setups)
    text = f"loaded in {loaded}, computed in {forward}; the ranks have {', '.join(parts)} weights"
    return api.Exercise.of(sharded and loaded == forward == BF16, text)


insufficient_checks = api.together(
    usual_checks.loss_ends_higher, partial(plain_loss.loss_unlike_reference, tolerance=TOLERANCE)
)
picture = api.lines(
    "How much of the weights has moved",
    "with the bug most weights never move; otherwise all move at the first step",
    lambda step: step["moved"],
    y="part of the weights",
)
