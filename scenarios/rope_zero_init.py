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

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.records import Records
from harness.spec import Companion, Defect, Finding, Lane, Outcome, Scenario, Variant

if TYPE_CHECKING:
    import libcst as cst

    from harness.rank import Context

PRECISIONS = ("bf16", "fp32", "fp16")
REMEDIES = ("none", "original_arange", "tiny_model", "persistent")
ROUNDED = 257
"""The first position that bf16 cannot hold: it becomes 256."""

ROUNDING = {Lane.CPU: 0.0, Lane.GPU: 2.0**-7}
"""How far buffers may be from a reference built on the CPU: a GPU's own arithmetic moved cosines
in bf16 by up to 2**-8. The bug moves them by 2.0."""


class Figures(NamedTuple):
    """What ``assert_close`` says of a buffer; None where the report, or we, did not look."""

    mismatched: int
    greatest: float | None = None
    place: tuple[int, int] | None = None
    relative: float | None = None
    relative_place: tuple[int, int] | None = None


EQUAL = Figures(0)

DOCUMENTED: Mapping[Lane, Mapping[tuple[str, str], Figures]] = {
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
}
"""Of 4096 positions and 128 dimensions, 524288 elements, by lane, precision and buffer. Those of
bf16 and fp32's cosines on a GPU are the report's own; the others were measured here. On a GPU
zero.Init also moves the frequencies there, where 4 of 64 come out one ulp off: that is all of
fp32's 88 and 116."""

RETURNED: Mapping[Lane, Mapping[tuple[str, str], Figures]] = {
    Lane.GPU: {("bf16", "inv_freq"): Figures(63)},
    Lane.CPU: {("bf16", "inv_freq"): Figures(63), ("fp16", "inv_freq"): Figures(63)},
}
"""The same of 64 frequencies, in releases that keep no cosines: there the arange that is cast is
the one that frequencies are made from, as in rope_zero_init_v5. Logits differ from 1 on."""


@dataclass
class Params:
    """The knobs. The size of the buffers is none: the figures are those of one size."""

    zero_init: bool = True
    """Whether the model is built under zero.Init at all."""
    remedy: str = "none"
    """What is done about it: ``none``, ``original_arange``, ``tiny_model`` or ``persistent``."""
    tokens: int = 320
    """The length of the sequence whose logits are compared: more than 257, at most 4096."""

    def __post_init__(self) -> None:
        if self.remedy not in REMEDIES:
            raise ValueError(f"scenario.remedy={self.remedy}: choose one of {', '.join(REMEDIES)}")
        if not ROUNDED < self.tokens <= 4096:
            raise ValueError(f"scenario.tokens must be more than {ROUNDED}, and at most 4096")


def count_in_integers(function: cst.FunctionDef) -> Iterator[tuple[cst.CSTNode, cst.CSTNode]]:
    """Ask arange for integers instead of floats, and cast what it returns."""
    import libcst as cst
    import libcst.matchers as m

    dtype = m.Arg(keyword=m.Name("dtype"))
    floats = m.Call(
        func=m.Attribute(m.Name("torch"), m.Name("arange")), args=[m.ZeroOrMore(), dtype]
    )
    for call in m.findall(function, floats):
        assert isinstance(call, cst.Call)
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
    title="zero.Init rounds the positions of LLaMA's rotary embedding, "
    "and its cosines are wrong by up to 2.0",
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
    date="2024-03-15",
    ranks=2,
    companions=(
        Companion(
            "transformers>=5", {"deepspeed": "0.19.8"},
            "the numpy of their day is none that DeepSpeed 0.13 can be imported with",
        ),
    ),
    variants={
        "buggy": Variant("the release of the report", Outcome.SYMPTOM),
        "fixed": Variant(
            "a release that counts positions in integers", Outcome.CLEAN,
            pins={"transformers": "4.38.2"},
        ),
        "original_arange": Variant(
            "the rotary embedding's constructor is given torch's own arange", Outcome.CLEAN,
            params={"remedy": "original_arange"},
        ),
        "tiny_model": Variant(
            "the buffers of a one-layer model, built on the CPU outside of zero.Init, are copied "
            "over", Outcome.CLEAN, params={"remedy": "tiny_model"},
        ),
        "persistent": Variant(
            "the buffers are made persistent, saved from a healthy model and loaded",
            Outcome.CLEAN, params={"remedy": "persistent"},
        ),
        "integers": Variant(
            "positions are counted in integers and cast late, as a patch of the release",
            Outcome.CLEAN, (INTEGERS,),
        ),
        "control": Variant(
            "the release of the report, and no zero.Init", Outcome.CLEAN,
            params={"zero_init": False}, triggers=False,
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Build the model as DeepSpeed does, in three precisions; compare with one built plainly."""
    import torch

    from scenarios.workloads import rope

    with ctx.phase("init"):
        rope.init_distributed(ctx.lane.backend)
    shape = rope.Shape()
    with ctx.phase("buffers"):
        models = {precision: _compared(ctx, shape, precision) for precision in PRECISIONS}
    with ctx.phase("logits"):
        torch.manual_seed(ctx.seed)
        references = rope.references(shape, "bf16", ctx.device)
        tokens = rope.tokens(shape, ctx.params.tokens, ctx.seed, ctx.device)
        ctx.record("logits", **rope.logits(models["bf16"], references, tokens))


def _compared(ctx: Context, shape: Any, precision: str) -> Any:
    """One model, whose buffers were compared with those of a one-layer model on the CPU."""
    from dataclasses import replace

    from scenarios.workloads import rope

    tiny = replace(shape, layers=1)
    model, casts = _built(ctx, shape, precision)
    if ctx.params.remedy == "tiny_model":
        rope.copy_buffers(model, rope.build(tiny, precision, "cpu"))
    saved: list[str] = []
    if ctx.params.remedy == "persistent":
        saved = rope.load_buffers(model, rope.build(shape, precision, "cpu"))
    sharded, parameters = rope.sharded(model)
    ctx.record(
        "buffers",
        lane=ctx.lane,
        precision=precision,
        casts=casts,
        sharded=sharded,
        parameters=parameters,
        compared={name: list(buffer.shape) for name, buffer in model.named_buffers()},
        differing=rope.differing(model, rope.build(tiny, precision, "cpu")),
        parted=rope.parted(model, ctx.device),
        saved=saved,
    )
    return model


def _built(ctx: Context, shape: Any, precision: str) -> tuple[Any, dict[str, str]]:
    """The model, and what became of the dtypes that constructors were asked for meanwhile."""
    from transformers.models.llama.modeling_llama import (  # type: ignore[import-not-found]
        LlamaRotaryEmbedding,
    )

    from scenarios.workloads import rope

    patched: AbstractContextManager[Any] = nullcontext()
    if ctx.params.remedy == "original_arange":
        patched = rope.unwrapped_arange(LlamaRotaryEmbedding)
    context = rope.zero_init(precision) if ctx.params.zero_init else nullcontext()
    with patched, context:
        return rope.build(shape, precision), rope.casts()


def detect(records: Records) -> Finding | None:
    """Buffers that are not the reference's, with the figures of the report."""
    wrong = {
        (record["precision"], difference["name"]): difference
        for record in records.of("buffers")
        for difference in record["differing"]
        if beyond(difference, ROUNDING[Lane(record["lane"])])
    }
    answers = records.of("logits")
    if not wrong and all(answer["first"] is None for answer in answers):
        return None
    deviations = [d for record in records.of("buffers") for d in _figures_unlike(record)]
    first = ROUNDED if any(map(_keeps_cosines, records.of("buffers"))) else 1
    deviations += [d for answer in answers for d in _logits_unlike(answer, first)]
    kinds = {(precision, name.rpartition(".")[2]): d for (precision, name), d in wrong.items()}
    lines = [_told(precision, difference) for (precision, _), difference in kinds.items()]
    lines += [_diverging(answers[0])] if answers else []
    return Finding(
        message="\n".join([*dict.fromkeys(deviations), *lines]),
        parameters=tuple(dict.fromkeys(name for _, name in wrong)),
        step=0,  # the buffers are wrong as soon as the model is built
        ranks=records.ranks,
        magnitude=max((difference["greatest"] for difference in wrong.values()), default=None),
        documented=bool(wrong and answers) and not deviations,
    )


def beyond(difference: Mapping[str, Any], rounding: float) -> bool:
    """Whether a difference is more than rounding: another dtype is, and NaN is."""
    return difference["dtype"] != difference["expected_dtype"] or not (
        difference["greatest"] <= rounding
    )


def _keeps_cosines(record: Mapping[str, Any]) -> bool:
    """Whether the model's buffers are cosines and sines, as in the report, or frequencies alone."""
    return any(name.endswith("cos_cached") for name in record["compared"])


def _figures_unlike(record: Mapping[str, Any]) -> Iterator[str]:
    """What a rank's buffers of one precision have, where the report has something else."""
    documented = DOCUMENTED if _keeps_cosines(record) else RETURNED
    for (precision, buffer), figures in documented[Lane(record["lane"])].items():
        if precision != record["precision"]:
            continue
        names = [name for name in record["compared"] if name.endswith(buffer)]
        found = {difference["name"]: difference for difference in record["differing"]}
        if not names:
            yield f"{precision}: the model has no {buffer}"
        for name in names:
            seen = _figures(found[name]) if name in found else EQUAL
            if any(e is not None and s != e for s, e in zip(seen, figures, strict=True)):
                yield f"{precision} {name}: {seen}, where the documented figures are {figures}"


def _figures(difference: Mapping[str, Any]) -> Figures:
    return Figures(
        difference["mismatched"],
        difference["greatest"],
        tuple(difference["place"][-2:]),  # up to 4.34 there are two more dimensions, of size 1
        difference["relative"],
        tuple(difference["relative_place"][-2:]),
    )


def _logits_unlike(answer: Mapping[str, Any], first: int) -> Iterator[str]:
    """What the logits did, where the first wrong position should part them for good."""
    if answer["unequal_parameters"]:
        yield f"the weights differ as well: {', '.join(answer['unequal_parameters'])}"
    if answer["first"] is None:
        yield f"the logits of {answer['tokens']} tokens are the same nevertheless"
    elif answer["first"] != first:
        yield f"the logits differ from position {answer['first']} on, and not from {first}"
    elif answer["differing"] != answer["after"]:
        yield f"{answer['after'] - answer['differing']} later positions have equal logits again"


def _told(precision: str, difference: Mapping[str, Any]) -> str:
    seen = _figures(difference)
    share = seen.mismatched / difference["elements"]
    return (
        f"{precision} {difference['name']}: mismatched elements {seen.mismatched} / "
        f"{difference['elements']} ({share:.1%}), greatest absolute difference {seen.greatest} at "
        f"{seen.place}, greatest relative difference {seen.relative} at {seen.relative_place}"
    )


def _diverging(answer: Mapping[str, Any]) -> str:
    if answer["first"] is None:
        return f"logits: the same for {answer['tokens']} tokens"
    farthest = max(answer["greatest"].values())
    return (
        f"logits: bitwise equal up to position {answer['first'] - 1}, different from "
        f"{answer['first']} on, by up to {farthest:.3g}; {answer['parameters']} parameters bitwise "
        "equal"
    )


def exercised(records: Records) -> str | None:
    """zero.Init was at work while every model was built, and positions beyond 256 were asked."""
    built, answers = records.of("buffers"), records.of("logits")
    if not built or not all(map(_under_zero_init, built)):
        return None
    if not answers or any(a["unequal_parameters"] or a["tokens"] <= ROUNDED for a in answers):
        return None
    greatest = max((d["greatest"] for record in built for d in record["differing"]), default=0.0)
    return (
        f"zero.Init sharded all {built[0]['parameters']} parameters and cast a float32 arange to "
        f"{built[0]['casts']['arange']}; {len(built[0]['compared'])} buffers in {len(PRECISIONS)} "
        f"precisions within {greatest:g} of the reference, logits of {answers[0]['tokens']} tokens "
        "bitwise equal"
    )


def _under_zero_init(record: Mapping[str, Any]) -> bool:
    cast = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[record["precision"]]
    all_sharded = record["sharded"] == record["parameters"] > 0
    return bool(all_sharded and record["casts"]["arange"] == cast and record["compared"])


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired: every rank is wrong in the same way."""
    return {
        "a parameter differs from the reference's": any(
            answer["unequal_parameters"] for answer in records.of("logits")
        ),
        "a buffer differs between ranks": any(r["parted"] for r in records.of("buffers")),
    }
