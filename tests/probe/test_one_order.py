"""A layout that reads the rows in another order than the reference is compared in one order."""

from __future__ import annotations

import re

import pytest

from harness.training.probe.layouts import ACCUMULATION, RANKS, Settings
from tests.probe.probing import BEGIN, Probing, first_broken, layout, refused, require_right

pytestmark = pytest.mark.launch

SCRIPT = (
    BEGIN
    + """
import types
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.distributed import DistributedSampler

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
)

PAIR = re.compile(r"val_loss is ([\d.]+); the reference has ([\d.]+)")


@pytest.mark.slow
@pytest.mark.parametrize("order", ["shuffled", "in sequence"])
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_evaluations_are_those_of_the_runs_whose_steps_are_compared(
    probing: Probing, order: str, factor: float
) -> None:
    """Other rows give other weights, and these another loss. One that is 1.25 times too large was
    called 1.247 times."""
    words = ["{rows}", order, str(factor)]
    answers = probing(SCRIPT, words, Settings(layouts=(RANKS,)))
    require_right(answers)
    pairs = [PAIR.search(note) for note in layout(answers, RANKS).notes]
    ratios = [float(pair[1]) / float(pair[2]) for pair in pairs if pair]
    assert ratios == pytest.approx([factor] if factor > 1 else [], rel=1e-4)


FLAT = (
    BEGIN
    + """
rows, k = map(int, sys.argv[1:3])


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, input_ids, attention_mask, position_ids=None):
        return self.head(self.embedding(input_ids))


model = Model()
run = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
ids, more = torch.randint(1, 50, (48, 6)), {}
for step in range(4):
    optimizer.zero_grad()
    for micro in range(k):
        begin = ((step * k + micro) * world + rank) * rows
        flat = ids[begin : begin + rows].reshape(1, -1)
        if sys.argv[3] == "with positions":
            more = {"position_ids": torch.arange(6).repeat(rows)[None]}
        scores = run(flat, attention_mask=flat * 0 + 1, **more)
        (nn.functional.cross_entropy(scores[0], flat[0]) / k).backward()
    optimizer.step()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["with positions", "without positions"])
def test_rows_that_are_packed_into_one_are_no_other_samples(probing: Probing, how: str) -> None:
    """trl 0.19 packs a micro-batch into one row, with positions only for FlashAttention."""
    settings = Settings(layouts=(RANKS, ACCUMULATION))
    answers = probing(FLAT, ["{rows}", "{k}", how], settings)
    assert first_broken(answers) == {}
    whys = refused(answers)
    assert len(whys) == (2 if how == "without positions" else 0)
    assert all("is it packed of several?" in why for why in whys)


@pytest.mark.slow
def test_ranks_that_read_parts_of_the_rows_have_no_answer_that_says_so(probing: Probing) -> None:
    words = ["{rows}", "parts", "1"]
    answers = probing(SCRIPT, words, Settings(layouts=(RANKS,)))
    why = layout(answers, RANKS).no_answer
    assert "reads the rows in another order than the reference" in why
    assert "masks" not in why
