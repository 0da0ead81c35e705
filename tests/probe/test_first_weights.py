"""First weights that another environment draws or loads otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from harness.rank.probe import exchange
from harness.rank.probe.findings.untrained import SAMPLED, recorded, sample
from harness.rank.probe.recording.noise import Noise
from harness.training.probe.other_environment import other_frozen
from tests.group import in_group


def step(head: float, **frozen: list[float]) -> dict[str, Any]:
    """The first step of a model with a trained head and these frozen weights."""
    samples = {name: [np.array(values), [len(values)]] for name, values in frozen.items()}
    return {"before": {"head": np.full(2, head)}, "untrained": samples}


@pytest.mark.parametrize(
    ("body", "names"),
    [([1.0, 2.0], ()), ([1.001, 2.0], ()), ([2.0, 1.0], ("body",)), ([1.0, 2.0, 3.0], ())],
)
def test_frozen_weights_of_the_same_name_and_shape_are_compared(
    body: list[float], names: tuple[str, ...]
) -> None:
    assert other_frozen(step(1.0, body=body), step(1.0, body=[1.0, 2.0])) == names


def test_only_rank_0_records_frozen_weights_and_all_values_only_on_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each rank of a model of 7 billion parameters recorded all of them, 28 GB."""
    model = nn.Sequential(nn.Linear(300, 300, dtype=torch.bfloat16), nn.Linear(2, 2))
    record = recorded(model.named_parameters(), ["1.weight"])
    assert [*record["untrained"]] == ["0.weight", "0.bias", "1.weight", "1.bias"]
    values, shape = record["untrained"]["0.weight"]
    assert SAMPLED / 2 < values.numel() < 2 * SAMPLED
    assert (values.dtype, shape) == (torch.float32, [300, 300])
    assert torch.equal(record["complete"].pop("1.weight"), model.state_dict()["1.weight"])
    assert record["complete"] == {}
    monkeypatch.setenv("RANK", "1")
    assert recorded(model.named_parameters(), ["1.weight"]) == {"untrained": {}, "complete": {}}


def test_a_sample_has_values_of_all_columns() -> None:
    columns = torch.arange(100.0).expand(1000, 100)
    assert len(sample(columns).unique()) == 100


def carry_over(rank: int, folder: Path) -> None:
    """Carry all values of a weight over to ranks that have parts of it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = distribute_tensor(torch.zeros(5, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    noise = Noise(exchange.Assignment("", False, [], "", "", shift=str(folder / "shift")))
    noise.move("weight", weight, of_engine=False)
    if not torch.equal(weight.full_tensor(), torch.arange(10.0).reshape(5, 2)):
        raise AssertionError("it has other values")


def test_ranks_that_have_parts_of_a_weight_get_their_parts_of_the_reference_s(
    tmp_path: Path,
) -> None:
    """The whole weight was added to each part, which failed under FSDP2."""
    change = {"weight": torch.arange(10.0).reshape(5, 2)}
    (tmp_path / "shift").write_bytes(exchange.dumped(change))
    in_group(2, carry_over, tmp_path)
