"""The workers of a loader: all of them may read the same rows, in every layout."""

from __future__ import annotations

import pytest

from harness.rank.probe.findings.workers import WORKERS
from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import BEGIN, Probing

pytestmark = pytest.mark.launch

SCRIPT = (
    BEGIN
    + """
import numpy
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

rows, data = int(sys.argv[1]), torch.randn(192, 4)
seed = lambda worker: None


class Stream(IterableDataset):
    splits, shuffles = True, False

    def __iter__(self):
        order, worker = list(range(len(data)))[rank::world], get_worker_info()
        if self.shuffles:
            random.Random(0).shuffle(order)
        return iter([data[n] for n in (order[worker.id :: 2] if self.splits else order)])


class Noisy(Dataset):
    def __len__(self):
        return len(data) // world

    def __getitem__(self, n):
        return data[n * world + rank] + torch.tensor(numpy.random.rand(4) * NOISE).float()


HOW
model = nn.Linear(4, 1)
run = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for x in DataLoader(dataset, rows, num_workers=2, worker_init_fn=seed):
    optimizer.zero_grad()
    run(x).square().mean().backward()
    optimizer.step()
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "note"),
    [
        ("dataset = Stream()", ""),
        ("Stream.shuffles = True; dataset = Stream()", ""),
        ("NOISE = 1e-3; dataset = Noisy()", ""),
        (
            "Stream.splits = False; dataset = Stream()",
            "each of the 2 workers of a loader reads the same rows",
        ),
        (
            "NOISE = 1e-3; dataset = Noisy(); seed = lambda worker: numpy.random.seed(0)",
            "workers 0 and 1 of a loader draw the same random numbers: numpy's generator",
        ),
    ],
)
def test_workers_that_read_the_same_rows_or_draw_the_same_numbers_are_noted(
    probing: Probing, how: str, note: str
) -> None:
    answers = probing(SCRIPT.replace("HOW", how), "{rows}", Settings(layouts=(RANKS,)))
    notes = [note for note in answers.notes if note.startswith(WORKERS)]
    assert [note in each for each in notes] == [True] * bool(note)
