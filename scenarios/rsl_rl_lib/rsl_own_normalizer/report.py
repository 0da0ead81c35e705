"""Update rsl_rl's normalizer on 2 ranks with unlike observations: is its mean that of all?

Needs torch and rsl-rl-lib, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

try:
    from rsl_rl.modules import EmpiricalNormalization
except ImportError:  # 3.1 to 3.3
    from rsl_rl.networks import EmpiricalNormalization

RANKS = 2


def main(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
    normalizer = EmpiricalNormalization([1])
    normalizer.update(torch.full((4, 1), float(rank)))  # the mean of all ranks is 0.5
    torch.save(normalizer.mean, f"{folder}/{rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(main, (folder,), RANKS)
        means = [float(torch.load(f"{folder}/{rank}")) for rank in range(RANKS)]
    has_bug = any(abs(mean - 0.5) > 0.01 for mean in means)
    print(f"rsl-rl-lib {version('rsl-rl-lib')}: the ranks normalize by the means {means}")
    print("WRONG: the mean of all observations is 0.5" if has_bug else "right: all have 0.5")
    raise SystemExit(3 if has_bug else 0)
