"""What this process is: its rank, a worker of a loader, in the middle of what."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ..events import frames

MAKING = {
    "initialize_optimizer_states": "deepspeed.",
    "_init_optim_state": "torch.distributed.checkpoint.",
}
"""The functions that step an optimizer without gradients to make its state, and their packages."""


def is_worker() -> bool:
    """Whether this process reads rows for another one."""
    return torch.utils.data.get_worker_info() is not None


def rank() -> int:
    """The rank of this process, also before there is a process group."""
    is_up = dist.is_available() and dist.is_initialized()
    return dist.get_rank() if is_up else int(os.environ.get("RANK") or 0)


def world() -> int:
    """The number of ranks that torchrun has started."""
    return int(os.environ.get("WORLD_SIZE") or 1)


def restarts() -> int:
    """How often torchrun has started the ranks again, after one had failed."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)


def makes_state() -> bool:
    """Whether a package steps the optimizer, before any training, to make its state."""
    return any(
        package and str(frame.f_globals.get("__name__", "")).startswith(package)
        for frame in frames()
        for package in [MAKING.get(frame.f_code.co_name)]
    )


def captures() -> bool:
    """Whether a CUDA graph is captured, which would replay the checks."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()
