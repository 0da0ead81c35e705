"""Compute ignite's accuracy after each of 3 updates on 2 ranks: do earlier rows count again?

Needs torch and pytorch-ignite, and no GPU. The exit code is 3 if the bug is there."""

import tempfile

import ignite
import ignite.distributed as idist
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ignite.metrics import Accuracy

RANKS = 2


def values(rank: int, folder: str) -> None:
    """Save the value after each update. Each rank has ten right rows, then twice ten wrong ones."""
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    idist.sync()
    metric, accuracies = Accuracy(), []
    for answer in (1, 0, 0):
        outputs = torch.nn.functional.one_hot(torch.full((10,), answer), 2)
        metric.update((outputs, torch.ones(10, dtype=torch.long)))
        accuracies.append(round(float(metric.compute()), 4))
    torch.save(accuracies, f"{folder}/{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()  # gloo's threads end before the process, or it may abort


if __name__ == "__main__":
    folder = tempfile.mkdtemp()
    mp.spawn(values, (folder,), RANKS)  # type: ignore[attr-defined]
    series, whole = torch.load(f"{folder}/0.pt"), [1, 0.5, 0.3333]
    print("pytorch-ignite", ignite.__version__)
    print(f"the accuracy after 1, 2 and 3 updates is {series}; the rows say {whole}")
    print("WRONG: earlier rows count again" if series != whole else "right: each row counts once")
    raise SystemExit(3 if series != whole else 0)
