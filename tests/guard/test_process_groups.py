"""Ranks of a launcher that have no process group train alone."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from harness.rank.training.parameters import Modules
from tests.guard.trainer import Trainer


def test_model_of_a_destroyed_group_does_not_stop_guard() -> None:
    """A script trains, destroys its process group, and begins again with another one."""
    models = []
    for _ in range(2):
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        models.append(DistributedDataParallel(nn.Linear(3, 2)))
        modules = Modules()
        dist.destroy_process_group()
    first, second = (model.module.weight for model in models)
    assert modules.ranks[id(second)] == [0]
    assert id(first) not in modules.ranks


ALONE = """\
import torch
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(6):
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.launch
def test_ranks_that_train_alone_are_no_fault(under_guard: Trainer) -> None:
    script = under_guard.folder / "alone.py"
    script.write_text(ALONE)
    run = under_guard.script(script)
    assert (run.told, run.codes) == ([], [0, 0])
    assert run.logs[0].count("not seen: whether it is meant that each of 2 ranks trains a mod") == 1
    assert "guard" not in run.logs[1]
