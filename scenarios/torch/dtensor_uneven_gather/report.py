"""Split 5 rows over a flattened 2 x 2 mesh, and gather them: are all rows there?

Needs torch, and no GPU. The exit code is 3 if the bug is there."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn


def gathered(rank: int) -> list[float]:
    """The rows after they were split over both dimensions and gathered."""
    torch.distributed.init_process_group("gloo", "tcp://127.0.0.1:29835", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    mesh._flatten("all")
    rows = distribute_tensor(torch.arange(1.0, 6.0), mesh, [Shard(0), Shard(0)])
    return rows.full_tensor().tolist()


def other(number: int) -> None:
    gathered(number)


if __name__ == "__main__":
    spawn(other, nprocs=3, join=False, daemon=True)  # ranks 0, 1, 2
    rows = gathered(3)
    print(f"torch {torch.__version__}: gathered {rows}")
    has_bug = rows != [1, 2, 3, 4, 5]
    print("WRONG: a row is lost" if has_bug else "right: they are 1 to 5")
    raise SystemExit(3 if has_bug else 0)
