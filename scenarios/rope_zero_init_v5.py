"""zero.Init rounds LLaMA's rotary frequencies: transformers 5 has the old defect once more.

Where a model is built inside an explicit ``with deepspeed.zero.Init()``, as DeepSpeed's own manual
shows it, 63 of the 64 rotary frequencies are those of bf16. Every position but the first is turned
by a wrong angle, and far out in the context the cosines are arbitrary: wrong by up to 2.0.

Nobody need notice, as in the first case (``rope_zero_init``): the buffers are in no checkpoint, the
parameters are right, and every rank is wrong in the same way.

Root cause: the fix of 2024 made ``torch.arange`` count in integers, which ``zero.Init`` leaves
alone, and cast late. Later releases of transformers 5 ask for a float arange again, and protect
themselves by switching off what ``zero.Init`` does to ``arange``: but only where transformers
enters ``zero.Init`` itself. Where the user does, the arange is cast to bf16, and the division and
the power that make the frequencies run in bf16 as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.records import Records
from harness.spec import Finding, Lane, Outcome, Scenario, Variant
from scenarios.rope_zero_init import ROUNDING, beyond

if TYPE_CHECKING:
    from harness.rank import Context

FREQUENCIES = ("model.rotary_emb.inv_freq", "model.rotary_emb.original_inv_freq")
DOCUMENTED: Mapping[Lane, Mapping[str, int]] = {
    Lane.CPU: {"inv_freq": 63, "cos": 396216},
    Lane.GPU: {"inv_freq": 63},
}
"""Mismatched elements, of 64 and of 4096 * 128; ``cos`` in bf16, as the layers get them."""
DIVERGING = 1
"""The first position that is not turned by the angle 0."""


@dataclass
class Params:
    """The knobs."""

    zero_init: bool = True
    """Whether the model is built under zero.Init at all."""
    guard: bool = False
    """Whether transformers' own guard of arange is entered before zero.Init."""
    tokens: int = 320
    """The length of the sequence whose logits are compared; 2 to 4096."""

    def __post_init__(self) -> None:
        if not 2 <= self.tokens <= 4096:
            raise ValueError("scenario.tokens must be 2 to 4096")


SCENARIO = Scenario(
    title="transformers 5 under an explicit zero.Init: LLaMA's rotary frequencies are rounded "
    "to bf16",
    report=(
        "Enable deepspeed.zero.Init causes very strange spikes in PPO policy_loss (the first case)",
        "https://github.com/microsoft/DeepSpeed/issues/4932",
        "https://github.com/huggingface/transformers/issues/28685",
    ),
    fix="none at the time of writing: transformers counts in integers up to 5.14.1, but not since "
    "5.15.0",
    symptom="63 of 64 rotary frequencies are bf16 and wrong, relatively by up to 0.0045; the "
    "cosines made from them are wrong by up to 2.0, and logits differ from position 1 on",
    trigger="a model built inside an explicit `with deepspeed.zero.Init()`, in bf16 or fp16",
    remedy="enter transformers' prevent_arange_dtype_change() before zero.Init, or leave "
    "zero.Init to transformers' own integration",
    pins={"transformers": "5.23.0", "deepspeed": "0.19.8"},
    date="2026-11-20",
    ranks=1,
    releases="transformers>=5",
    variants={
        "buggy": Variant("the release, built under an explicit zero.Init", Outcome.SYMPTOM),
        "fixed": Variant(
            "a release that counts in integers", Outcome.CLEAN, pins={"transformers": "5.12.1"}
        ),
        "guarded": Variant(
            "the same release, its own guard of arange entered before zero.Init", Outcome.CLEAN,
            params={"guard": True},
        ),
        "control": Variant(
            "the same release, and no zero.Init", Outcome.CLEAN, params={"zero_init": False},
            triggers=False,
        ),
    },
)  # fmt: skip


def run(ctx: Context) -> None:
    """Build the model, compare its frequencies, its cosines and then its logits."""
    import torch

    from scenarios.workloads import rope

    with ctx.phase("init"):
        rope.init_distributed(ctx.lane.backend)
    shape = rope.Shape()
    with ctx.phase("buffers"):
        with ExitStack() as context:
            for each in _contexts(ctx):
                context.enter_context(each)
            model, casts = rope.build(shape, "bf16"), rope.casts()
        plain = rope.build(shape, "bf16", "cpu")
        sharded, parameters = rope.sharded(model)
        ctx.record(
            "buffers",
            lane=ctx.lane,
            casts=casts,
            sharded=sharded,
            parameters=parameters,
            compared=[name for name, _ in model.named_buffers()],
            differing=rope.differing(model, plain),
            turned=rope.turned(model, plain, ctx.device),
        )
    with ctx.phase("logits"):
        torch.manual_seed(ctx.seed)
        references = rope.references(shape, "bf16", ctx.device)
        tokens = rope.tokens(shape, ctx.params.tokens, ctx.seed, ctx.device)
        ctx.record("logits", **rope.logits(model, references, tokens))


def _contexts(ctx: Context) -> Iterator[AbstractContextManager[Any]]:
    """What the model is built in, outermost first."""
    from scenarios.workloads import rope

    if ctx.params.guard:
        from transformers.integrations.deepspeed import (  # type: ignore[import-not-found]
            prevent_arange_dtype_change,
        )

        yield prevent_arange_dtype_change()
    if ctx.params.zero_init:
        yield rope.zero_init("bf16")


def detect(records: Records) -> Finding | None:
    """Frequencies that are not the reference's, and cosines and logits that follow from them."""
    seen, answer = records.one("buffers"), records.one("logits")
    if seen is None or answer is None:
        return None
    rounding = ROUNDING[Lane(seen["lane"])]
    wrong = [d for d in [*seen["differing"], *seen["turned"]] if beyond(d, rounding)]
    if not wrong and answer["first"] is None:
        return None
    deviations = [*_unlike(Lane(seen["lane"]), wrong), *_logits_unlike(answer)]
    return Finding(
        message="\n".join(
            [
                *deviations,
                *map(_told, wrong),
                f"logits: different from position {answer['first']} on, by up to "
                f"{max(answer['greatest'].values()):.3g}; {answer['parameters']} parameters "
                "bitwise equal",
            ]
        ),
        parameters=tuple(d["name"] for d in seen["differing"] if d in wrong),
        step=0,  # the buffers are wrong as soon as the model is built
        ranks=records.ranks,
        magnitude=max((d["greatest"] for d in wrong), default=None),
        documented=not deviations,
    )


def _unlike(lane: Lane, wrong: list[dict[str, Any]]) -> Iterator[str]:
    """What was found, where it is not what was measured before on this lane."""
    found = {difference["name"]: difference for difference in wrong}
    expected = dict.fromkeys(FREQUENCIES, DOCUMENTED[lane]["inv_freq"])
    if "cos" in DOCUMENTED[lane]:
        expected["cos"] = DOCUMENTED[lane]["cos"]
    for name, mismatched in expected.items():
        seen = found[name]["mismatched"] if name in found else 0
        if seen != mismatched:
            yield f"{name}: {seen} elements differ, where {mismatched} are documented"
    for name in FREQUENCIES:
        if name in found and found[name]["dtype"] != "torch.bfloat16":
            yield f"{name} is {found[name]['dtype']}, and not of bf16"


def _logits_unlike(answer: Mapping[str, Any]) -> Iterator[str]:
    if answer["unequal_parameters"]:
        yield f"the weights differ as well: {', '.join(answer['unequal_parameters'])}"
    if answer["first"] != DIVERGING:
        yield f"the logits differ from position {answer['first']} on, and not from {DIVERGING}"


def _told(difference: Mapping[str, Any]) -> str:
    dtypes = f"{difference['dtype']}, where the reference is {difference['expected_dtype']}; "
    return (
        f"{difference['name']}: "
        f"{dtypes if difference['dtype'] != difference['expected_dtype'] else ''}"
        f"mismatched elements {difference['mismatched']} / {difference['elements']}, greatest "
        f"absolute difference {difference['greatest']:g}, relative {difference['relative']:.3g}"
    )


def exercised(records: Records) -> str | None:
    """zero.Init was at work while the model was built; of arange a release may guard itself."""
    seen, answer = records.one("buffers"), records.one("logits")
    if seen is None or answer is None or not set(FREQUENCIES) <= set(seen["compared"]):
        return None
    if not seen["sharded"] == seen["parameters"] > 0 or seen["casts"]["ones"] != "bfloat16":
        return None
    if answer["unequal_parameters"]:
        return None
    return (
        f"zero.Init sharded all {seen['parameters']} parameters and cast float32 ones to "
        f"{seen['casts']['ones']} (and arange to {seen['casts']['arange']}); "
        f"{len(seen['compared'])} buffers, the cosines and the logits of {answer['tokens']} tokens "
        "as those of the reference"
    )


def wrong_detectors(records: Records) -> dict[str, bool]:
    """What does not find this bug, and whether it fired."""
    answers = records.of("logits")
    unequal = any(answer["unequal_parameters"] for answer in answers)
    return {"a parameter differs from the reference's": unequal}
