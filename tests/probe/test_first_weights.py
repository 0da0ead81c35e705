"""First weights that another environment draws otherwise."""

from __future__ import annotations

from pathlib import Path

import torch

from harness.rank.probe import exchange
from harness.rank.probe.recording.noise import Noise
from tests.group import in_group


def carry_over(rank: int, folder: Path) -> None:
    """Carry all values of a weight over to ranks that have parts of it."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    weight = distribute_tensor(torch.zeros(5, 2), init_device_mesh("cpu", (2,)), [Shard(0)])
    noise = Noise(exchange.Assignment("", False, [], "", "", shift=str(folder / "shift")))
    noise.move("weight", weight)
    if not torch.equal(weight.full_tensor(), torch.arange(10.0).reshape(5, 2)):
        raise AssertionError("it has other values")


def test_ranks_that_have_parts_of_a_weight_get_their_parts_of_the_reference_s(
    tmp_path: Path,
) -> None:
    """The whole weight was added to each part, which failed under FSDP2."""
    change = {"weight": torch.arange(10.0).reshape(5, 2)}
    (tmp_path / "shift").write_bytes(exchange.dumped(change))
    in_group(2, carry_over, tmp_path)
