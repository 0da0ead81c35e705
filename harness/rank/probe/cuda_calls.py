"""Runs a script's CUDA calls on a CPU: most training scripts contain some.

Devices become the CPU, NCCL becomes gloo, and calls that only measure or wait do nothing. Each kind
of call is counted, and the report lists them. ``torch.cuda.is_available()`` stays false, so that a
script that supports CPUs chooses one itself. It is true only where the script or a library would
otherwise stop: in an ``assert``, or in an ``if`` that raises an error. ``torch.accelerator``
reports CUDA to scripts: some use DDP only with CUDA. Some packages also need the harness's shims.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from functools import partial
from multiprocessing import spawn
from typing import Any

from harness.rank import cuda_on_cpu
from harness.rank.cuda_on_cpu import callers
from harness.rank.cuda_on_cpu.devices import CUDA
from harness.rank.cuda_on_cpu.functions import DDP, RNG_STATES, VALUES, returns
from harness.rank.cuda_on_cpu.mode import enter_mode
from harness.rank.events import compiler_question
from harness.rank.replacement import replace

uses: Counter[str] = Counter()
"""How often the script called what a CPU does not have, by kind."""

FOR_ALL = (
    "torch.cuda.synchronize", "torch.cuda.reset_peak_memory_stats",
    "torch.cuda.reset_max_memory_allocated", "torch.cuda.ipc_collect",
    "torch.cuda.set_per_process_memory_fraction", "torch.cuda.set_device", "torch.cuda.stream",
    "torch.cuda.current_stream", "torch.cuda.Stream", "torch.cuda.Event", "torch.Generator",
    "torch.accelerator.set_device_index", "torch.accelerator.set_device_idx",
    "torch.accelerator.synchronize", "torch.nn.Module.cuda", "torch.amp.GradScaler.__init__",
    "torch.autocast.__init__", "torch.distributed.device_mesh.DeviceMesh.__init__",
    "torch.distributed.Work.get_future", f"{DDP}.__init__", *RNG_STATES,
    f"{DDP}._passing_sync_batchnorm_handle", "torch.nn.SyncBatchNorm.forward",
)  # fmt: skip

IMPORTED_BY_NAME = (
    "torch.distributed.device_mesh.init_device_mesh", "torch.distributed.init_process_group",
    "torch.distributed.new_group", "torch.distributed.barrier", "torch.load",
    "torch.set_default_device",
)  # fmt: skip
"""Functions that packages, which are imported already, have under their names."""

WHERE_DEMANDED = ("torch.cuda.is_available",)
ASKED_BY_SCRIPTS = (
    "torch.cuda.device_count", "torch.accelerator.is_available", "torch.accelerator.device_count",
)  # fmt: skip


def install() -> None:
    """Install what scripts need in this process and in those that it spawns."""
    _install_in_children()
    import torch

    cuda = torch.device(CUDA)  # the mode turns it into the CPU when it is passed to torch
    count = callers.counted_from(callers.from_script, lambda kind: uses.update([kind]))
    enter_mode(count, compiler_question())
    cuda_on_cpu.install(FOR_ALL, count)
    cuda_on_cpu.install(IMPORTED_BY_NAME, count, everywhere=True)
    cuda_on_cpu.install(VALUES, count, callers.not_from_compiler)
    cuda_on_cpu.install(WHERE_DEMANDED, count, callers.demands_gpu)
    cuda_on_cpu.install(ASKED_BY_SCRIPTS, count, callers.from_script_or_demands_gpu)
    # Scripts calculate with the number of the device; the mode takes it for the CPU.
    number = partial(returns("torch.cuda.current_device", 0), count)
    replace(torch.cuda, "current_device", number, callers.not_from_compiler)
    if hasattr(torch, "accelerator"):
        accelerator = partial(returns("current_accelerator", cuda), count)
        replace(torch.accelerator, "current_accelerator", accelerator, callers.from_script)


INSTALLING = "on the CPU"


class Installing:
    """Installs the replacements in the process that unpickles it."""

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return install, ()


def _install_in_children() -> None:
    """Install the replacements in interpreters that multiprocessing starts, too, before they run
    anything of the script: the first data that they receive does it."""
    prepared = spawn.get_preparation_data

    @functools.wraps(prepared)
    def prepare(*arguments: Any, **keywords: Any) -> dict[str, Any]:
        return {INSTALLING: Installing(), **prepared(*arguments, **keywords)}

    spawn.get_preparation_data = prepare
