"""SyncBatchNorm, which torch has for GPUs only, normalises over the rows of all ranks."""

from __future__ import annotations

import pytest

from harness.training.probe.layouts import ACCUMULATION, RANKS, Settings
from tests.probe.probing import Probing, first_broken, refused

pytestmark = [pytest.mark.launch, pytest.mark.slow]

SCRIPT = """
import sys, torch
from torch import nn

torch.manual_seed(0)
torch.distributed.init_process_group("nccl")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
torch.cuda.set_device(rank)
data, labels = torch.randn(96, 3, 4, 4), torch.randn(96, 1)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(32, 8), nn.BatchNorm1d(8),
    nn.Tanh(), nn.Linear(8, 1),
).cuda()
if sys.argv[3] == "synchronized":
    model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
run = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
rows, k = map(int, sys.argv[1:3])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(6):
    optimizer.zero_grad()
    for micro in range(k):
        start = ((step * k + micro) * world + rank) * rows
        x, y = data[start :][:rows].cuda(), labels[start :][:rows].cuda()
        (nn.functional.mse_loss(run(x), y) / k).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        model(data[:4])
    model.train()
"""


def test_a_synchronized_norm_is_that_of_all_rows(probing: Probing) -> None:
    settings = Settings(layouts=(RANKS, ACCUMULATION))
    answers = probing(SCRIPT, "{rows} {k} synchronized", settings)
    assert not refused(answers)
    assert first_broken(answers).keys() == {ACCUMULATION}
    (note,) = [note for note in answers.notes if "normalises" in note]
    assert "over the micro-batches of all ranks (--layouts" in note


def test_a_norm_of_each_rank_is_told(probing: Probing) -> None:
    answers = probing(SCRIPT, "{rows} {k} alone", Settings(layouts=(RANKS,)))
    assert first_broken(answers).keys() == {RANKS}
    (note,) = [note for note in answers.notes if "normalises" in note]
    assert "over the micro-batch of a rank" in note
