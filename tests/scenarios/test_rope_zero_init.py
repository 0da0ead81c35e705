"""Detection of rope_zero_init and rope_zero_init_v5, on made-up records."""

from __future__ import annotations

import math
from copy import deepcopy
from typing import Any

import pytest
import torch

from harness.bugs.api.spec import Lane, Records
from scenarios.transformers import _rope_buffers as buffers
from scenarios.transformers.rope_zero_init_v5 import scenario as rope_zero_init_v5
from tests.tampering.changes import recorded_trial


def rounding(of: float, dtype: str = "torch.bfloat16") -> dict[str, Any]:
    return {"greatest": of, "dtype": dtype, "expected_dtype": "torch.bfloat16"}


def test_a_gpus_own_rounding_is_no_difference_but_nan_is() -> None:
    assert not buffers.beyond(rounding(2**-8), 2**-7)
    assert buffers.beyond(rounding(2**-8), 0.0)
    assert buffers.beyond(rounding(float("nan")), 2**-7)
    assert buffers.beyond(rounding(0.0, "torch.float16"), 2**-7)


def turned(name: str, mismatched: int, dtype: str, expected: str) -> dict[str, Any]:
    """A difference in a buffer, like one of the recorded run."""
    differing = V5.of("buffers", 0)[0]["differing"][0]
    dtypes = {"dtype": f"torch.{dtype}", "expected_dtype": f"torch.{expected}"}
    return {**differing, "name": name, "mismatched": mismatched, **dtypes}


V5 = recorded_trial("rope_zero_init_v5", "buggy")


def v5(**changed: Any) -> Records:
    """The records of one rank with transformers 5 under zero.Init, with facts changed."""
    built, logits = (deepcopy(V5.of(kind, 0)[0]) for kind in ("buffers", "logits"))
    for name, value in changed.items():
        (built if name in built else logits)[name] = value
    return Records({0: [built, logits]})


@pytest.mark.parametrize("lane", list(Lane))
def test_other_figures_of_the_frequencies_are_not_the_documented_symptom(lane: Lane) -> None:
    names = rope_zero_init_v5.FREQUENCIES
    odd: list[dict[str, Any]] = [
        {"differing": [turned(names[0], 63, "bfloat16", "float32")]},
        {"differing": [turned(name, 62, "bfloat16", "float32") for name in names]},
        {"differing": [turned(name, 63, "float32", "float32") for name in names]},
        {"first": 2},
        {"first": None},
        {"differing": [], "turned": []},
        {"unequal_parameters": ["lm_head.weight"]},
        {"differing": [], "turned": [], "first": None, "unequal_parameters": ["lm_head.weight"]},
    ]
    for changed in odd:
        finding = rope_zero_init_v5.detect(v5(lane=lane, **changed))
        assert finding is not None
        assert not finding.documented, changed
    fewer = v5(lane=lane, turned=[turned("cos", 1, "bfloat16", "bfloat16")])
    finding = rope_zero_init_v5.detect(fewer)
    assert finding is not None
    assert finding.documented is (lane is Lane.GPU), "the cosines are known only for a CPU"


ROTARY = "model.rotary_emb"
ONES_AS_ASKED = {"arange": "bfloat16", "ones": "float32"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"compared": {f"{ROTARY}.inv_freq": [64]}}, f"no {ROTARY}.original_inv_freq"),
        ({"casts": ONES_AS_ASKED}, "torch.ones, asked for float32, gave float32"),
        ({"sharded": 0, "parameters": 0}, "zero.Init sharded 0 of 0 parameters"),
    ],
)
def test_transformers_5_without_an_active_zero_init_does_not_trigger_the_bug(
    changed: dict[str, Any], why: str
) -> None:
    exercise = rope_zero_init_v5.exercised(v5(**changed))
    assert not exercise
    assert why in exercise.text


@pytest.mark.parametrize(
    ("kind", "fact", "value", "message"),
    [
        ("buffers", "reference_off", {"model.rotary_emb.inv_freq": 0.1}, "inv_freq is 0.1 off"),
        ("buffers", "turned_off", {"cos": 0.1}, "the reference's cos is 0.1 off plain torch's"),
        ("logits", "reference_off", 0.1, "the reference's logits are off by 0.1 of plain torch's"),
    ],
)
@pytest.mark.parametrize("healthy", [True, False])
def test_a_reference_that_is_no_llama_proves_nothing(
    kind: str, fact: str, value: Any, message: str, healthy: bool
) -> None:
    records = v5(differing=[], turned=[], first=None) if healthy else v5()
    records.of(kind)[0][fact] = value
    finding = rope_zero_init_v5.detect(records)
    assert finding is not None
    assert not finding.documented
    assert message in finding.message


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
