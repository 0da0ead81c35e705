"""How rope_zero_init and rope_zero_init_v5 compare buffers and logits."""

from __future__ import annotations

import math
from typing import Any

import torch

from scenarios.transformers import _rope_buffers as buffers


def rounding(of: float, dtype: str = "torch.bfloat16") -> dict[str, Any]:
    return {"greatest": of, "dtype": dtype, "expected_dtype": "torch.bfloat16"}


def test_a_gpus_own_rounding_is_no_difference_but_nan_is() -> None:
    assert not buffers.beyond(rounding(2**-8), 2**-7)
    assert buffers.beyond(rounding(2**-8), 0.0)
    assert buffers.beyond(rounding(float("nan")), 2**-7)
    assert buffers.beyond(rounding(0.0, "torch.float16"), 2**-7)


def test_logits_are_compared_with_the_reference_that_agrees_for_most_positions() -> None:
    ours = torch.zeros(1, 6, 3)
    early, late, nan = ours.clone(), ours.clone(), ours.clone()
    early[0, 1, 2], late[0, 3:, 0], nan[0, 2, 1] = 9.0, 0.5, math.nan
    assert buffers.diverging(ours, {"early": early, "late": late}, (3, 4, 100)) == {
        "reference": "late",
        "first": 3,
        "after": 3,
        "differing": 3,
        "greatest": {"3": 0.0, "4": 0.5, "6": 0.5},
        "apart": [0.0, 0.0, 0.0, 0.5, 0.5, 0.5],
    }
    assert buffers.diverging(ours, {"same": ours}, ())["first"] is None
    assert buffers.diverging(ours, {"nan": nan}, ())["first"] == 2
