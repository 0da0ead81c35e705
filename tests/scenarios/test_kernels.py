"""The oracle that compares a kernel with plain torch, on made-up kernels and records."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from harness.bugs import catalog
from harness.bugs.api.spec import Records
from scenarios.common import kernels

RIGHT = {"output": 1e-7, "x": 1e-6}
WRONG = {"output": 1e-7, "x": 0.7}


class Context:
    """It keeps what is recorded."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    def record(self, kind: str, step: int, **facts: Any) -> None:
        self.facts = facts


def times(factor: float) -> kernels.Results:
    """The results of a kernel that multiplies by 2, and whose gradient has this factor."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return factor * gradient

    def kernel(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = Kernel.apply(x)  # type: ignore[no-untyped-call]
        return output

    return kernels.results(kernel, {"x": torch.tensor([3.0, 4.0])}, torch.tensor([1.0, 0.5]))


def test_distances_are_parts_of_the_norm_of_the_right_result() -> None:
    """The output is right. The gradient is 3 instead of 2 times what came in."""
    ctx: Any = Context()
    kernels.record(ctx, 1, computed=times(3), right=times(2), documented={"x": times(3)["x"]})
    assert ctx.facts["off"] == {"output": 0.0, "x": pytest.approx(0.5)}
    assert ctx.facts["off_documented"] == {"output": 0.0, "x": 0.0}


def test_a_kernel_without_a_gradient_is_not_compared() -> None:
    ctx: Any = Context()
    computed = {"output": torch.ones(1)}
    with pytest.raises(ValueError, match="the kernel gave output, plain torch output, x"):
        kernels.record(ctx, 1, computed=computed, right=times(2), documented={})


def judged(off: dict[str, float], off_documented: dict[str, float]) -> Any:
    """The finding of a trial with two such steps."""
    steps = [
        {"kind": "step", "rank": 0, "step": n, "off": off, "off_documented": off_documented}
        for n in (1, 2)
    ]
    oracle = kernels.Kernel(lambda: {}, "the reason")
    return oracle.detect(Records({0: steps}, catalog.load("liger_rope_first_row").Params()))


def test_results_near_those_of_the_documented_fault_are_the_symptom() -> None:
    finding = judged(WRONG, RIGHT)
    assert finding.documented
    assert finding.magnitude == 0.7
    assert "2 of 2 steps" in finding.message
    assert "in step 1 x by 0.7 of its norm; right: output" in finding.message
    assert "the reason" in finding.message


def test_other_wrong_results_are_not_documented_and_right_ones_are_no_finding() -> None:
    assert not judged(WRONG, WRONG).documented
    assert judged(RIGHT, WRONG) is None


def test_an_autotuned_kernel_keeps_one_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel of another package keeps all."""

    class Decorated:
        def __init__(self, fn: Any, configs: list[int] | None = None) -> None:
            self.fn = fn
            if configs:
                self.configs = configs

    tuned, other = Decorated(len, [1, 2, 3]), Decorated(len, [1, 2])
    for name, kernel in (("made_up.ops", Decorated(tuned)), ("made_up_too", other)):
        module = ModuleType(name)
        vars(module)["kernel"] = kernel
        monkeypatch.setitem(sys.modules, name, module)
    kernels.keep_one_configuration("made_up")
    assert tuned.configs == [1]
    assert other.configs == [1, 2]
