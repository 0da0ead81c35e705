"""Under deepspeed.zero.Init in bf16, LLaMA sees most tokens above position 256 at wrong positions.

Two neighbouring tokens share one position; further on, sixteen tokens do. Weights, losses and
memory look as they should. Users met it in January 2024 in PPO training: with zero.Init the policy
loss had spikes that it did not have without. Users of two frameworks and the maintainers of
DeepSpeed and transformers needed two weeks to follow the difference from the loss through the
logits of a 70B model down to buffers that no checkpoint contains.

Root cause: while a model is built, ``zero.Init`` wraps ``torch.arange`` and casts every floating
result to the dtype of the DeepSpeed config, even if the caller asked for float32. LLaMA made its
positions as a float arange. bf16 rounds integers above 256, fp16 those above 2048, so positions
fall on their neighbours. The cosines and sines computed from them are kept in buffers that are not
persistent, so no checkpoint repairs them. The fix counts positions in integers, which ``zero.Init``
leaves alone, and casts them late.

The bug is in transformers, but it needs DeepSpeed: a DeepSpeed release can be affected by it
together with an affected transformers. transformers 5 has the defect again, in other code and with
other figures: ``rope_zero_init_v5`` is about that.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from harness.bugs import api
from scenarios.transformers import _rope_buffers as buffers
from scenarios.transformers._rope_buffers import EQUAL, Documented, Figures

PRECISIONS = ("bf16", "fp32", "fp16")
ROUNDED = 257
"""The first position that bf16 cannot represent: it becomes 256."""

DOCUMENTED = Documented(
    first=ROUNDED,
    figures={
        api.Lane.GPU: {
            ("bf16", "cos_cached"): Figures(329332, 2.0, (1148, 2), 8320.0, (3657, 11)),
            ("bf16", "sin_cached"): Figures(324808, 2.0, (1211, 0), 2128.0, (3305, 26)),
            ("fp32", "cos_cached"): Figures(88, 2.0**-8, (2308, 47), 0.00762939453125, (4060, 22)),
            ("fp32", "sin_cached"): Figures(116, 2.0**-8, (746, 40), 0.01025390625, (149, 22)),
            ("fp16", "cos_cached"): Figures(115476),
            ("fp16", "sin_cached"): Figures(112582),
        },
        api.Lane.CPU: {
            ("bf16", "cos_cached"): Figures(329320, 2.0, (1148, 2), 8320.0, (3657, 11)),
            ("bf16", "sin_cached"): Figures(324796, 2.0, (1211, 0), 2128.0, (3305, 26)),
            ("fp32", "cos_cached"): EQUAL,
            ("fp32", "sin_cached"): EQUAL,
            ("fp16", "cos_cached"): Figures(115110),
            ("fp16", "sin_cached"): Figures(112232),
        },
    },
)
"""Of 524288 elements: 4096 positions and 128 dimensions, which therefore are no parameters. The
figures of bf16 and of fp32's cosines on a GPU are the report's own; the others were measured here.
On a GPU, zero.Init also makes the frequencies there, where 4 of 64 differ in the last place: that
explains the 88 and 116 of fp32."""

RETURNED = Documented(
    first=1,
    figures={
        api.Lane.GPU: {("bf16", "inv_freq"): Figures(63)},
        api.Lane.CPU: {("bf16", "inv_freq"): Figures(63), ("fp16", "inv_freq"): Figures(63)},
    },
)
"""The same for releases that keep 64 frequencies and no cosines: zero.Init casts the arange that
these are made from, as in rope_zero_init_v5."""


def count_in_integers(function: Any) -> api.Edits:
    """Ask arange for integers instead of floats, and cast what it returns."""
    import libcst as cst
    import libcst.matchers as m

    arange = m.Attribute(m.Name("torch"), m.Name("arange"))
    floats = m.Call(func=arange, args=[m.ZeroOrMore(), m.Arg(keyword=m.Name("dtype"))])
    call: Any
    for call in m.findall(function, floats):
        *others, dtype = call.args
        integers = dtype.with_changes(value=cst.parse_expression("torch.int64"))
        late = cst.Attribute(call.with_changes(args=[*others, integers]), cst.Name("to"))
        yield call, cst.Call(late, [cst.Arg(dtype.value)])


def plan(at: api.Position) -> api.Plan:
    """The buffers in three precisions, and the logits in bf16."""
    saved = api.many(api.LINE, least=1) if at.params.remedy == "persistent" else api.exactly([])
    return buffers.plan(at, *PRECISIONS, saved=saved)


def run(ctx: api.Context) -> None:
    """Build the model as DeepSpeed does, in three precisions, and compare it with one built on the
    CPU."""
    from scenarios.transformers import _rope_models as rope

    with ctx.phase("init"):
        rope.init_distributed(ctx)
    with ctx.phase("buffers"):
        models = {precision: _compared(ctx, precision) for precision in PRECISIONS}
    with ctx.phase("logits"):
        rope.compare_logits(ctx, models["bf16"], ctx.params.tokens)


def _compared(ctx: api.Context, precision: str) -> Any:
    """Build a model, apply the remedy, and compare the buffers; returns the model."""
    from scenarios.transformers import _rope_models as rope
    from scenarios.transformers.rope_zero_init import remedies

    remedy, saved = ctx.params.remedy, []
    contexts: list[AbstractContextManager[Any]] = []
    if remedy == "original_arange":
        contexts.append(remedies.unwrapped_arange())
    if ctx.params.zero_init:
        contexts.append(rope.zero_init(precision))
    model, casts = rope.built(precision, contexts)
    if remedy == "tiny_model":
        remedies.copy_buffers(model, rope.tiny(precision))
    if remedy == "persistent":
        saved = remedies.load_buffers(model, rope.build(precision, "cpu"))
    rope.compare_buffers(ctx, model, precision, casts, saved=saved)
    return model


def detect(records: api.Records) -> api.Finding | None:
    """Cosines and sines differ from the reference's by the figures of the report, and logits differ
    from position 257 on. In releases that keep frequencies, 63 of 64 differ, and logits from
    position 1 on."""
    names = [name for record in records.of("buffers") for name in record["compared"]]
    cosines = any(name.endswith("cos_cached") for name in names)
    return buffers.unlike_reference(records, DOCUMENTED if cosines else RETURNED)


def exercised(records: api.Records) -> api.Exercise:
    """zero.Init was active while every model was built, and positions above 256 were compared."""
    return buffers.under_zero_init(records, "arange") & buffers.compared_beyond(records, ROUNDED)


insufficient_checks = api.together(buffers.weights_differ, buffers.ranks_differ)
picture = buffers.by_position
