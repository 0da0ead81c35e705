"""What DeepSpeed did in which releases, where several bugs depend on it, by its own history."""

from __future__ import annotations

from harness.bugs import api

NEVER_TAKEN = api.Absent(
    "deepspeed>=0.17.6,<0.18.5",
    "in these releases two constants are equal, so DeepSpeed never takes BF16_Optimizer",
    "https://github.com/deepspeedai/DeepSpeed/pull/7788",
)
BEFORE_BF16 = api.Absent(
    "deepspeed<0.6.2",
    "BF16_Optimizer came with 0.6.2",
    "https://github.com/deepspeedai/DeepSpeed/pull/1801",
)
BEFORE_WRAPPING = api.Absent(
    "deepspeed<0.17.6",
    "only since 0.17.6 bf16 without ZeRO has another optimizer than BF16_Optimizer",
    "https://github.com/deepspeedai/DeepSpeed/pull/7515",
)
