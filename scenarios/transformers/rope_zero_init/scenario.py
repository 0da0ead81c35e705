"""deepspeed.zero.Init rounds the positions of LLaMA's rotary embedding, and its cosines are wrong.

Above position 256 the model sees tokens where they are not: two neighbours share one position, and
further on sixteen do. Weights, losses and memory look as they should.

Met in January 2024 in PPO training: with zero.Init the policy loss had spikes that it did not have
without, and checkpoints told nothing. It took users of two frameworks and the maintainers of
DeepSpeed and transformers two weeks to follow the difference from the loss through the logits of a
70B model down to buffers that no checkpoint holds.

Root cause: for the time that a model is built, ``zero.Init`` wraps ``torch.arange`` and casts every
floating result to the dtype of the DeepSpeed config, even where the caller asked for float32.
LLaMA made its positions as a float arange. In bf16 integers above 256 are rounded, in fp16 above
2048, so positions fall on their neighbours. The cosines and sines are then computed from these in
float32, and kept in buffers that are not persistent: no checkpoint repairs them. The fix counts
positions in integers, which ``zero.Init`` leaves alone, and casts them late.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from harness.facts.plan import Plan
from harness.facts.shapes import LINE, exactly, many
from harness.knobs import Knobs, knob
from harness.spec import (
    Companion,
    Context,
    Defect,
    Edits,
    Exercise,
    Finding,
    Lane,
    Position,
    Records,
    Scenario,
    affected,
    unaffected,
)
from scenarios.transformers.rope_zero_init import buffers
from scenarios.transformers.rope_zero_init.buffers import EQUAL, Documented, Figures

PRECISIONS = ("bf16", "fp32", "fp16")
ROUNDED = 257
"""The first position that bf16 cannot hold: it becomes 256."""

DOCUMENTED = Documented(
    first=ROUNDED,
    figures={
        Lane.GPU: {
            ("bf16", "cos_cached"): Figures(329332, 2.0, (1148, 2), 8320.0, (3657, 11)),
            ("bf16", "sin_cached"): Figures(324808, 2.0, (1211, 0), 2128.0, (3305, 26)),
            ("fp32", "cos_cached"): Figures(88, 2.0**-8, (2308, 47), 0.00762939453125, (4060, 22)),
            ("fp32", "sin_cached"): Figures(116, 2.0**-8, (746, 40), 0.01025390625, (149, 22)),
            ("fp16", "cos_cached"): Figures(115476),
            ("fp16", "sin_cached"): Figures(112582),
        },
        Lane.CPU: {
            ("bf16", "cos_cached"): Figures(329320, 2.0, (1148, 2), 8320.0, (3657, 11)),
            ("bf16", "sin_cached"): Figures(324796, 2.0, (1211, 0), 2128.0, (3305, 26)),
            ("fp32", "cos_cached"): EQUAL,
            ("fp32", "sin_cached"): EQUAL,
            ("fp16", "cos_cached"): Figures(115110),
            ("fp16", "sin_cached"): Figures(112232),
        },
    },
)
"""Of 4096 positions and 128 dimensions, 524288 elements; so the size of the buffers is no knob.
Those of bf16 and fp32's cosines on a GPU are the report's own; the others were measured here. On a
GPU zero.Init also moves the frequencies there, where 4 of 64 come out one ulp off: that is all of
fp32's 88 and 116."""

RETURNED = Documented(
    first=1,
    figures={
        Lane.GPU: {("bf16", "inv_freq"): Figures(63)},
        Lane.CPU: {("bf16", "inv_freq"): Figures(63), ("fp16", "inv_freq"): Figures(63)},
    },
)
"""The same of 64 frequencies, in releases that keep no cosines: there the arange that is cast is
the one that frequencies are made from, as in rope_zero_init_v5."""


@dataclass
class Params(Knobs):
    zero_init: bool = knob(True, about="whether the model is built under zero.Init at all")
    remedy: str = knob(
        "none",
        choices=("none", "original_arange", "tiny_model", "persistent"),
        about="what is done about it",
    )
    tokens: int = knob(
        320, above=ROUNDED, most=4096, about="in the sequence whose logits are compared"
    )


def count_in_integers(function: Any) -> Edits:
    """Ask arange for integers instead of floats, and cast what it returns."""
    import libcst as cst
    import libcst.matchers as m

    arange = m.Attribute(m.Name("torch"), m.Name("arange"))
    floats = m.Call(func=arange, args=[m.ZeroOrMore(), m.Arg(keyword=m.Name("dtype"))])
    call: Any
    for call in m.findall(function, floats):
        *others, asked = call.args
        integers = asked.with_changes(value=cst.parse_expression("torch.int64"))
        late = cst.Attribute(call.with_changes(args=[*others, integers]), cst.Name("to"))
        yield call, cst.Call(late, [cst.Arg(asked.value)])


INTEGERS = Defect(
    name="count_in_integers",
    upstream="transformers",
    file="transformers/models/llama/modeling_llama.py",
    scope="LlamaRotaryEmbedding._set_cos_sin_cache",
    edit=count_in_integers,
    about="no defect but the thread's remedy for it: positions are made as integers, which "
    "zero.Init leaves alone, and cast late",
)

SCENARIO = Scenario(
    report=(
        "Enable deepspeed.zero.Init causes very strange spikes in PPO policy_loss",
        "https://github.com/microsoft/DeepSpeed/issues/4932",
        "https://github.com/huggingface/transformers/issues/28596",
        "https://github.com/huggingface/transformers/issues/28685",
    ),
    fix="https://github.com/huggingface/transformers/pull/28760 (transformers 4.38.0)",
    symptom="Tensor-likes are not equal! Mismatched elements: 329332 / 524288 (62.8%), greatest "
    "absolute difference: 2.0 at index (1148, 2), greatest relative difference: 8320.0 at index "
    "(3657, 11); logits that diverge at about 300 tokens",
    trigger="a LLaMA built under deepspeed.zero.Init in bf16 or fp16",
    remedy="use transformers 4.38.0 to 5.14.1, or copy the rotary buffers of a small model that "
    "was built outside of zero.Init",
    pins={"transformers": "4.36.2", "deepspeed": "0.13.3"},
    goes_wrong="positions",
    ranks=2,
    companions=(
        Companion(
            "transformers>=5",
            {"deepspeed": "0.19.8"},
            "the numpy of their day is none that DeepSpeed 0.13 can be imported with",
        ),
    ),
    variants={
        "buggy": affected(),
        "fixed": unaffected("4.38.2"),
        "original_arange": unaffected(
            about="the rotary embedding's constructor is given torch's own arange",
            params={"remedy": "original_arange"},
        ),
        "tiny_model": unaffected(
            about="the buffers of a one-layer model, built on the CPU outside of zero.Init, are "
            "copied over",
            params={"remedy": "tiny_model"},
        ),
        "persistent": unaffected(
            about="the buffers are made persistent, saved from a healthy model and loaded",
            params={"remedy": "persistent"},
        ),
        "integers": unaffected(
            about="positions are counted in integers and cast late, as a patch of the release",
            defects=(INTEGERS,),
        ),
        "control": unaffected(
            about="the release, and no zero.Init", params={"zero_init": False}, triggers=False
        ),
    },
)


def plan(at: Position) -> Plan:
    """The buffers in three precisions, and the logits in bf16."""
    saved = many(LINE, least=1) if at.params.remedy == "persistent" else exactly([])
    return buffers.plan(at, *PRECISIONS, saved=saved)


def run(ctx: Context) -> None:
    """Build the model as DeepSpeed does, in three precisions; compare with one built plainly."""
    from scenarios.transformers.rope_zero_init import models as rope

    with ctx.phase("init"):
        rope.init_distributed(ctx)
    with ctx.phase("buffers"):
        models = {precision: _compared(ctx, precision) for precision in PRECISIONS}
    with ctx.phase("logits"):
        rope.compare_logits(ctx, models["bf16"], ctx.params.tokens)


def _compared(ctx: Context, precision: str) -> Any:
    """One model, after its remedy; its buffers were compared."""
    from scenarios.transformers.rope_zero_init import models as rope

    remedy, saved = ctx.params.remedy, []
    contexts: list[AbstractContextManager[Any]] = []
    if remedy == "original_arange":
        contexts.append(rope.unwrapped_arange())
    if ctx.params.zero_init:
        contexts.append(rope.zero_init(precision))
    model, casts = rope.built(precision, contexts)
    if remedy == "tiny_model":
        rope.copy_buffers(model, rope.tiny(precision))
    if remedy == "persistent":
        saved = rope.load_buffers(model, rope.build(precision, "cpu"))
    rope.compare_buffers(ctx, model, precision, casts, saved=saved)
    return model


def detect(records: Records) -> Finding | None:
    """Cosines and sines are not the reference's, by the figures of the report, and logits differ
    from position 257 on; where a release keeps frequencies alone, 63 of 64 and from 1 on."""
    names = [name for record in records.of("buffers") for name in record["compared"]]
    cosines = any(name.endswith("cos_cached") for name in names)
    return buffers.unlike_reference(records, DOCUMENTED if cosines else RETURNED)


def exercised(records: Records) -> Exercise:
    """zero.Init was at work while every model was built, and positions beyond 256 were asked."""
    return buffers.under_zero_init(records, "arange") & buffers.asked_beyond(records, ROUNDED)


def insufficient_checks(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    return buffers.weights_differ(records) | buffers.ranks_differ(records)


picture = buffers.by_position
