"""DTensors are assembled from the shards of all ranks, and divided as their placements say; so are
first weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from harness.rank.probe import exchange
from harness.rank.probe.recording.noise import Noise
from harness.training.probe.layouts import RANKS, Settings
from tests.group import in_group
from tests.probe.probing import BEGIN, Probing, require_right

pytestmark = pytest.mark.launch

SCRIPT = (
    BEGIN
    + """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

data, weight = torch.randn(96, 3), torch.randn(5, 4, 3)
goals = torch.randn(96, 5, 4)
rows = torch.arange(5)[:, None].expand(5, 4)
columns = torch.arange(4)[None].expand(5, 4)
placements = None


def of_this_rank(whole):
    if placements is None:
        return whole
    return distribute_tensor(whole, mesh, placements, src_data_rank=None).to_local()


if dist.get_world_size() == 4:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    placements = eval(sys.argv[2])
    if sys.argv[3:]:
        mesh._flatten()
begin, rows, columns = map(of_this_rank, (weight, rows, columns))
if placements is not None:
    begin = DTensor.from_local(
        begin, mesh, placements, run_check=False, shape=weight.shape, stride=weight.stride()
    )
model = nn.Module()
model.weight = nn.Parameter(begin)


def forward(x):  # each rank computes the loss of its own rows of the weight
    own = model.weight.to_local() if placements else model.weight
    own = own.reshape(-1, 3)
    return x @ own.T


model.forward = forward
optimizer = torch.optim.SGD(model.parameters(), 0.1)
size = int(sys.argv[1])
for step in range(5):
    x, y = data[step * 12 :][:size], goals[step * 12 :][:size]
    optimizer.zero_grad()
    goal = y[:, rows.reshape(-1), columns.reshape(-1)]
    (model(x) - goal).square().sum(1).mean().backward()
    optimizer.step()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("[Shard(0), Shard(0)]", "flattened"),  # full_tensor() of torch 2.13.0 loses a row here
        ("[Shard(0), Shard(1)]",),
        ("[Shard(1), Replicate()]",),
        ("[_StridedShard(0, split_factor=2), Shard(0)]",),
    ],
)
def test_a_parameter_is_put_together_from_its_shards(
    probing: Probing, words: tuple[str, ...]
) -> None:
    settings = Settings(layouts=(RANKS,), ranks=4, same_rows=True)
    answers = probing(SCRIPT, ["{rows}", *words], settings)
    require_right(answers)


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
