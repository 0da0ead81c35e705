"""The GPU of a rank: one of its own, or a part of one, where there are more ranks than GPUs.

NCCL refuses two ranks with the same host and the same device. A rank that shares a GPU therefore
says that it is a host of its own, with one GPU, and NCCL talks to the others over sockets. That is
slow, and right.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

HOST = "NCCL_HOSTID"


def take_place() -> None:
    """Give this rank its GPU, by torchrun's variables: before CUDA or NCCL start."""
    os.environ |= of_rank(os.environ, _visible())


def of_rank(variables: Mapping[str, str], gpus: list[str]) -> dict[str, str]:
    """What changes in the variables of a rank, by the GPUs that its node has for all of its ranks.

    Nothing changes on a CPU, or with a GPU for each rank. What a user has set for NCCL stays.
    """
    local, ranks = int(variables["LOCAL_RANK"]), int(variables["LOCAL_WORLD_SIZE"])
    if not gpus or len(gpus) >= ranks:
        return {}
    rank = variables["RANK"]
    is_one_node = int(variables["WORLD_SIZE"]) == ranks
    for_nccl = {
        HOST: f"{platform.node()}-{rank}",
        **({"NCCL_SOCKET_IFNAME": "lo"} if is_one_node else {}),
    }
    return {
        "CUDA_VISIBLE_DEVICES": gpus[local * len(gpus) // ranks],
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "LOCAL_SIZE": "1",  # DeepSpeed's
        "GROUP_RANK": rank,
        **{name: value for name, value in for_nccl.items() if name not in variables},
    }


def shares_gpu() -> bool:
    """Whether this rank has got a part of a GPU."""
    return os.environ.get(HOST, "").endswith(f"-{os.environ.get('RANK')}")


def _visible() -> list[str]:
    """The GPUs that the ranks of this node have, as CUDA_VISIBLE_DEVICES names them."""
    setting = os.environ.get("CUDA_VISIBLE_DEVICES")
    if setting is not None:
        return [word for word in setting.split(",") if word.strip()]
    import torch

    return list(map(str, range(torch.cuda.device_count())))
