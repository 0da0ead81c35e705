"""Detection of device_math, which needs a GPU, on made-up records."""

from __future__ import annotations

from typing import Any

import pytest

from harness.bugs import catalog
from harness.bugs.api.plan import wrong_facts
from harness.bugs.api.spec import Lane, Position, Records
from scenarios.torch.device_math import scenario as device_math
from scenarios.torch.device_math.scenario import NINTH, QUOTIENT

HOST = [f"0x{index:08x}" for index in range(10)]
SAME = {"host": "0x3f666666", "device": "0x3f666666"}


def records(device: str = "cuda", dtype: str = "torch.float32", **changed: Any) -> Records:
    """What an H200 computes with a plain divisor: powers 4 and 9 of 10 differ."""
    values = {
        "bits": {"host": HOST, "device": [*HOST[:4], "0x1", *HOST[5:9], "0x2"]},
        "powers": {n: [1.0] * 9 + [NINTH[n]] for n in ("host", "device")},
        "quotient": QUOTIENT,
    }
    facts = {"kind": "values", "rank": 0, "step": None, "device": device, "dtype": dtype}
    return Records({0: [{**facts, **values, **changed}]})


def test_the_figures_of_the_report_are_the_documented_symptom() -> None:
    finding = device_math.detect(records())
    assert finding is not None
    assert finding.documented
    assert "elements [4, 9] of 10 differ; the last is 7.94328212738037109375" in finding.message
    assert "9 / 10 is 0x3f666666 and 0x3f666667" in finding.message
    assert finding.magnitude == pytest.approx(9.5e-7, rel=0.01)
    assert finding.unit == "between the CPU's power and the device's"


@pytest.mark.parametrize(
    "changed",
    [
        {"bits": {"host": HOST, "device": [*HOST[:9], "0x2"]}},
        {"powers": {"host": [1.0] * 10, "device": [1.0] * 10}},
        {"powers": {"host": [float("nan")] * 10, "device": [float("nan")] * 10}},
        {"quotient": {"host": "0x3f666666", "device": "0x3f666668"}},
        {"quotient": SAME},
    ],
)
def test_other_figures_are_not_the_documented_symptom(changed: dict[str, Any]) -> None:
    finding = device_math.detect(records(**changed))
    assert finding is not None
    assert not finding.documented


def test_the_fourth_element_alone_proves_nothing() -> None:
    """It also differs if the divisor is a tensor."""
    bits = {"host": HOST, "device": [*HOST[:4], "0x1", *HOST[5:]]}
    assert device_math.detect(records(bits=bits, quotient=SAME)) is None


@pytest.mark.parametrize(
    ("device", "dtype", "met"),
    [
        ("cuda", "torch.float32", True),
        ("cpu", "torch.float32", False),
        ("cuda", "torch.float64", False),
    ],
)
def test_only_a_gpu_in_float32_triggers_it(device: str, dtype: str, met: bool) -> None:
    exercise = device_math.exercised(records(device, dtype))
    assert exercise.met is met
    assert f"with those of {device.upper()}, in {dtype.removeprefix('torch.')}" in exercise.text


def planned(**changed: Any) -> str:
    """The plan's complaint about the facts of ``records``, on a GPU."""
    at = Position(catalog.load("device_math").Params(), 0, 0, 1, Lane.GPU, {}, "")
    (values,) = records(bits={"host": HOST, "device": HOST}, **changed).of("values")
    return wrong_facts(device_math.plan(at)["values"].facts_of(0), values)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"device": "cpu"}, "device is 'cpu', expected 'cuda'"),
        ({"dtype": "nan"}, "dtype is 'nan', expected dtype"),
        ({"quotient": {**SAME, "device": "inf"}}, "quotient device is 'inf', expected 32 bits"),
    ],
)
def test_the_plan_refuses_facts_of_another_form(changed: dict[str, Any], message: str) -> None:
    assert planned() == ""
    assert planned(**changed) == message
