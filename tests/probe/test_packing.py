"""What ranks record is read without torch, and by another release of numpy."""

from __future__ import annotations

import numpy
import torch

from harness.rank.probe.exchange import Step, dumped, loaded

RECORDED = {
    "steps": [Step(grad={"weight": torch.arange(6.0).reshape(2, 3)}, losses=[1.5])],
    "reported": [(2, "eval_loss", 0.5)],
    "empty": torch.zeros(0, dtype=torch.float64),
    "scalar": torch.tensor(3),
}


def test_tensors_become_arrays_and_other_values_stay() -> None:
    content = loaded(dumped(RECORDED))
    weight = content["steps"][0].grad["weight"]
    assert isinstance(weight, numpy.ndarray)
    assert weight.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert content["steps"][0].losses == [1.5]
    assert content["reported"] == [(2, "eval_loss", 0.5)]
    assert content["empty"].shape == (0,)
    assert content["scalar"] == 3
    assert loaded(dumped(content))["steps"][0].grad["weight"].tolist() == weight.tolist()


def test_no_module_of_a_package_is_named() -> None:
    content = dumped(RECORDED)
    assert not any(name in content for name in (b"numpy", b"torch"))
