"""Workers of multiprocessing that train say so at their end; those that load data say nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.guard.commands import guard
from tests.sandbox import Ended, Sandbox

pytestmark = pytest.mark.slow

SCRIPT = """\
import multiprocessing, os, sys

def train(loader=None, steps=6):
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for rows in loader or [torch.ones(2, 4)] * steps:
        torch.nn.functional.mse_loss(model(rows), torch.zeros(2, 4)).backward()
        optimizer.step()
        optimizer.zero_grad()

def train_and_fail():
    train()
    raise ValueError("of the script")

def load(method):
    import torch

    rows = torch.arange(48.0).reshape(12, 4)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=2, num_workers=2, multiprocessing_context=method
    )
    train(loader)

class Noise:
    def __len__(self):
        return 12

    def __getitem__(self, row):
        import numpy, torch

        return torch.tensor([numpy.random.rand(), 0.0, 0.0, row])

def seed_alike(worker):
    import numpy

    numpy.random.seed(0)

def draw(method, alike):
    import torch

    train(torch.utils.data.DataLoader(
        Noise(), batch_size=2, num_workers=2, multiprocessing_context=method,
        worker_init_fn=seed_alike if alike else None,
    ))

def work(method, function):
    worker = multiprocessing.get_context(method).Process(target=function)
    worker.start()
    worker.join()
    return worker.exitcode

if __name__ == "__main__":
    method, case = sys.argv[1:]
    if case == "imported":
        import torch
    if case == "loader":
        load(method)
    elif case in ("alike", "unlike"):
        draw(method, case == "alike")
    else:
        os.write(1, b"%d" % work(method, train_and_fail if case == "fails" else train))
"""

METHODS = ("fork", "spawn", "forkserver")


def run(sandbox: Sandbox, *words: str) -> Ended:
    (sandbox.cwd / "workers.py").write_text(SCRIPT)
    return guard(sandbox, sys.executable, "workers.py", *words)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("case", "code"), [("imported", 0), ("late", 0), ("fails", 1)])
def test_a_worker_that_trains_has_a_summary(
    method: str, case: str, code: int, sandbox: Sandbox
) -> None:
    end = run(sandbox, method, case)
    assert (end.code, end.out) == (0, str(code)), end.err
    assert end.err.count("guard: 6 steps, 5 checked; ") == 1, end.err
    assert ("ValueError: of the script" in end.err) == (case == "fails")


@pytest.mark.parametrize("method", METHODS)
def test_a_worker_that_loads_data_says_nothing(method: str, sandbox: Sandbox) -> None:
    end = run(sandbox, method, "loader")
    assert end.code == 0, end.err
    assert end.err.count("guard: 6 steps, 5 checked; ") == 1, end.err
    assert end.err.count("guard: watches torch") == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["alike", "unlike"])
def test_workers_that_draw_alike_are_told_however_they_are_started(
    method: str, case: str, sandbox: Sandbox
) -> None:
    """Since Python 3.14 they come from a fork server, and nothing that a process has is in them."""
    files = set(Path("/dev/shm").glob("guard-*"))
    end = run(sandbox, method, case)
    assert ("draw the same random numbers" in end.err) == (case == "alike"), end.err
    assert set(Path("/dev/shm").glob("guard-*")) <= files
