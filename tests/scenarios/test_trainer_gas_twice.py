"""Detection of trainer_gas_twice, on made-up records."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Records

trainer_gas_twice = catalog.load("trainer_gas_twice")
TWO = trainer_gas_twice.Params(accumulation=2)


def trained(size: float, **changed: Any) -> Records:
    """Two steps with two micro-batches of one row each; they apply ``size`` times the gradient."""
    fixed = {"gradient": 1.0, "off": 0.0, "losses": [1.0, 2.0], "tokens": [15, 15], "aside": 0.0}
    fixed |= {"applied": size, "ratio": size, "micro": [size] * 2, "reference_loss": 1.5}
    steps: list[dict[str, Any]] = [
        {"kind": "step", "rank": 0, "step": n, "rows": [2 * n - 2, 2 * n - 1], **fixed}
        for n in (1, 2)
    ]
    steps[1].update({k: v for k, v in changed.items() if k in steps[1]})
    logged = {"kind": "logged", "rank": 0, "losses": changed.get("logged", [1.5, 1.5])}
    return Records({0: [*steps, {**logged, "step": None}]}, TWO)


@pytest.mark.parametrize(
    ("model", "name"), [("plain", "trainer_gas_never"), ("llama", "trainer_gas_llama")]
)
def test_the_opposite_factor_is_the_other_bug(model: str, name: str) -> None:
    params = trainer_gas_twice.Params(accumulation=2, model=model)
    for bug, factor, logged, other_bug in (
        (trainer_gas_twice, 2.0, [3.0, 3.0], name),
        (catalog.load(name), 0.5, [1.5, 1.5], "trainer_gas_twice"),
    ):
        records = replace(trained(factor, logged=logged), params=params)
        finding = bug.detect(records)
        assert finding is not None
        assert (finding.documented, finding.another) == (False, other_bug)
        strange = bug.detect(replace(trained(factor, logged=logged, rows=[1, 3]), params=params))
        assert strange is not None
        assert (strange.documented, strange.another) == (False, "")
