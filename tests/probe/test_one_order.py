"""A layout that reads the rows in another order than the reference is compared in one order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import Probing, first_broken, layout, refused

pytestmark = pytest.mark.launch

SCRIPT = """
import sys, types, torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
torch.manual_seed(0)
rank, world = dist.get_rank(), dist.get_world_size()
rows, order, factor = int(sys.argv[1]), sys.argv[2], float(sys.argv[3]) if world > 1 else 1.0


class _EvaluationLoop:  # of Lightning, which reports the losses of an evaluation here
    def on_run_end(self):
        with torch.no_grad():
            loss = nn.functional.mse_loss(model(x[:7]), y[:7])
        return [{"val_loss": factor * float(loss)}]


loops = types.ModuleType("lightning.pytorch.loops.evaluation_loop")
loops._EvaluationLoop = _EvaluationLoop
sys.modules[loops.__name__] = loops
x, y = torch.randn(36, 4), torch.randn(36, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
run = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
data = TensorDataset(x, y)
if order == "parts":  # one after another
    part = range(rank * 36 // world, (rank + 1) * 36 // world)
    sampler = SequentialSampler(torch.utils.data.Subset(data, part))
    data = sampler.data_source
elif world > 1:
    sampler = DistributedSampler(data, shuffle=True)  # Lightning shuffles for any sampler
else:
    sampler = RandomSampler(data) if order == "shuffled" else SequentialSampler(data)
for epoch in range(2):
    getattr(sampler, "set_epoch", id)(epoch)
    for a, b in DataLoader(data, rows, sampler=sampler):
        optimizer.zero_grad()
        nn.functional.mse_loss(run(a), b).backward()
        optimizer.step()
        _EvaluationLoop().on_run_end()
"""

PAIR = re.compile(r"val_loss is ([\d.]+); the reference has ([\d.]+)")


@pytest.mark.parametrize("order", ["shuffled", "in sequence"])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_evaluations_are_those_of_the_runs_whose_steps_are_compared(
    probing: Probing, tmp_path: Path, order: str, factor: float
) -> None:
    """Other rows give other weights, and these another loss. One that is 1.25 times too large was
    called 1.247 times."""
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["{rows}", order, str(factor)]
    answers = probing(str(tmp_path / "train.py"), words, Settings(layouts=(RANKS,)))
    assert not refused(answers)
    assert first_broken(answers) == {}
    pairs = [PAIR.search(note) for note in layout(answers, RANKS).notes]
    ratios = [float(pair[1]) / float(pair[2]) for pair in pairs if pair]
    assert ratios == pytest.approx([factor] if factor > 1 else [], rel=1e-4)


def test_ranks_that_read_parts_of_the_rows_have_no_answer_that_says_so(
    probing: Probing, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["{rows}", "parts", "1"]
    answers = probing(str(tmp_path / "train.py"), words, Settings(layouts=(RANKS,)))
    why = layout(answers, RANKS).no_answer
    assert "reads the rows in another order than the reference" in why
    assert "masks" not in why
