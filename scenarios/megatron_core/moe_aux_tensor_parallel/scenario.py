"""With tensor parallelism an MoE's auxiliary loss has a fraction of its weight: half on 2 ranks.

This affects users who train a mixture of experts with ``calculate_per_token_loss`` and sequence
parallelism, which mixtures of experts need for tensor parallelism. The loss that balances the
experts has only 1/ranks of the weight that ``moe_aux_loss_coeff`` sets. So the same settings
balance less on more ranks. The gradient of the task is right.

Root cause: all gradients are divided by the number of tokens at the end, so the router multiplies
its auxiliary loss by that number first. But it takes the number of its own tokens, which are only a
part of the sequence. The fix multiplies by the number of ranks, too. Releases that accept a padding
mask are right with one: by another bug (``moe_aux_masked``), their number of tokens is then that of
all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.api.knobs import Knobs, knob
from harness.api.settings import above, by_code
from harness.api.spec import (
    Context,
    Exercise,
    Finding,
    Records,
    Scenario,
    expect_clean,
    expect_symptom,
)
from scenarios.megatron_core import _moe_shares as shares
from scenarios.megatron_core.moe_aux_tensor_parallel.fix import times_ranks


@dataclass
class Params(Knobs):
    per_token: bool = knob(True, about="calculate_per_token_loss")
    masked: bool = knob(False, about="whether the router gets a padding mask; from 0.16 on")
    coefficient: float = knob(0.5, above=0, about="that the auxiliary loss should have")
    times: float = knob(1.0, above=0, about="moe_aux_loss_coeff as a multiple of that coefficient")
    steps: int = knob(3, least=1, about="of training")
    lr: float = knob(0.5, above=0, about="of SGD")


REMEDY = times_ranks(
    "our remedy, the change of 0.19.0: the auxiliary loss is multiplied by the ranks"
)

SCENARIO = Scenario(
    report=(
        "Fix MoE aux_loss / z_loss gradient scaling with TP > 1",
        "https://github.com/NVIDIA/Megatron-LM/pull/5047",
        "https://github.com/NVIDIA/Megatron-LM/issues/1652",
    ),
    fix="https://github.com/NVIDIA/Megatron-LM/pull/5047 (megatron-core 0.19.0, which needs Python "
    "3.12); the fixed variant is 0.16.1 with the same change",
    symptom="when calculate_per_token_loss is set, the gradient of the MoE's auxiliary loss "
    "depends on the tensor-parallel size",
    trigger="calculate_per_token_loss, sequence parallelism and a router with an auxiliary loss",
    remedy="multiply moe_aux_loss_coeff by the tensor-parallel size",
    pins={"megatron-core": "0.16.1"},
    harm="ruins training",
    visibility="silent",
    settings={
        "tensor_parallel": above(1),
        "code": by_code("calculate_per_token_loss is set and an MoE has an auxiliary loss"),
    },
    files=("megatron/core/transformer/moe/router.py",),
    ranks=2,
    variants={
        "buggy": expect_symptom(),
        "fixed": expect_clean(about="0.16.1 with the change of 0.19.0", defects=(REMEDY,)),
        "control": expect_clean(
            about="0.16.1 without calculate_per_token_loss",
            params={"per_token": False},
            triggers=False,
        ),
        "one_rank": expect_clean(about="0.16.1 on one rank", ranks=1, triggers=False),
        "masked": expect_clean(
            about="0.16.1 with a padding mask: another bug doubles what this one halves",
            params={"masked": True},
        ),
        "remedy": expect_clean(about="0.16.1 with twice the coefficient", params={"times": 2.0}),
    },
)
plan, picture, insufficient_checks = shares.plan, shares.picture, shares.insufficient_checks


def run(ctx: Context) -> None:
    """Train the router alone, on sequences that the ranks share."""
    from scenarios.megatron_core import _moe_router as router

    p = ctx.params
    with ctx.phase("steps"):
        router.train(ctx, p.lr, per_token=p.per_token, masked=p.masked)


def detect(records: Records) -> Finding | None:
    """Each step applied 1/ranks of the auxiliary loss's gradient, and all of the task's."""
    return shares.scaled(records, 1 / len(records.ranks))


def exercised(records: Records) -> Exercise:
    """The ranks shared the sequence, the loss was one per token, and the auxiliary loss had a
    gradient."""
    return shares.shared(records)
