"""fp16_overflow: its warning, its silent sibling, and the loss scaler's arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from harness.bugs import catalog
from scenarios.deepspeed._loss_scale import LIMIT, expected_skips
from tests.tampering.changes import Case, changed, during, recorded_trial

fp16_overflow = catalog.load("fp16_overflow")
fp16_overflow_stage0 = catalog.load("fp16_overflow_stage0")

Records = list[dict[str, Any]]


def leave_three_bits(step: dict[str, Any]) -> None:
    for name in step["headroom"]:
        step["headroom"][name], step["largest"][name] = 3.0, LIMIT / 2**3


def test_the_warning_comes_when_the_headroom_is_low() -> None:
    sudden = during(leave_three_bits, range(92))
    late = changed(Case("fp16_overflow", "buggy", None, "step", sudden, ""))
    finding = fp16_overflow.detect(late)
    assert finding is not None
    assert ", 0 steps before the first nan" in finding.message


def test_the_exception_is_no_finding_for_the_silent_sibling() -> None:
    raised = recorded_trial("fp16_overflow", "buggy")
    assert fp16_overflow_stage0.detect(raised) is None
    assert "layer 0 scores passed 65504 at step 89" in fp16_overflow_stage0.exercised(raised).text
    assert fp16_overflow_stage0.insufficient_checks(raised)["the run ends with an exception"]


def scaler(initial: float, minimum: float, hysteresis: int, consecutive: bool = False) -> Any:
    names = ("initial", "minimum", "hysteresis", "consecutive")
    return dict(zip(names, (initial, minimum, hysteresis, consecutive), strict=True))


def history(pattern: str, scale: float) -> Records:
    """Steps that overflow (x), are taken (.) or are taken and double the scale (+)."""
    steps: Records = []
    skipped = 0
    for mark in pattern:
        skipped += mark == "x"
        scale *= 2 if mark == "+" else 1
        steps.append({"skipped": skipped, "loss_scale": scale})
    return steps


@pytest.mark.parametrize(
    ("scaler", "pattern", "skips"),
    [
        (scaler(4096, 1, 2), "x" * 13, 13),
        (scaler(2.0**16, 1, 1), "x" * 16, 16),
        (scaler(256, 16, 2), "x" * 5, 5),
        (scaler(4096, 1, 2), ".x.x" + "x" * 11, 13),
        (scaler(4096, 1, 2, consecutive=True), "x.x" + "x" * 12, 14),
        (scaler(4096, 1, 2), "x+x" + "x" * 13, 15),
        (scaler(100, 3, 1), "x" * 6, 6),
    ],
)
def test_the_skips_are_the_halvings_and_what_hysteresis_ignores(
    scaler: Any, pattern: str, skips: int
) -> None:
    assert expected_skips(history(pattern, scaler["initial"]), scaler) == skips


OUT_OF_BOUNDS: list[dict[str, Any]] = [
    *({"precision": "fp8"}, {"zero_stage": 3}, {"lr": 0.0}, {"lr": 1e-5}, {"steps": 0}),
    *({"sequences": 3}, {"min_loss_scale": 8192.0}, {"gradient_clipping": -1.0}),
]


@pytest.mark.parametrize("params", OUT_OF_BOUNDS, ids=str)
@pytest.mark.parametrize("module", [fp16_overflow, fp16_overflow_stage0])
def test_parameters_out_of_bounds_are_refused(module: Any, params: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"scenario\."):
        module.Params(**params)
