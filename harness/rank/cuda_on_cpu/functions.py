"""The table of the emulation: what each function, and each class, is on a CPU."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from harness.rank.cuda_on_cpu import devices, nccl, streams
from harness.rank.cuda_on_cpu.devices import CPU, CUDA, Count
from harness.rank.replacement import Substitute


def returns(kind: str, value: Any) -> Substitute:
    """Return a value, and count a use of this kind."""

    def substitute(count: Count, original: Any, /, *_: Any, **__: Any) -> Any:
        count(kind)
        return value

    return substitute


def _current_device(count: Count, original: Any, /) -> Any:
    import torch

    count("torch.cuda.current_device")
    return torch.device(CPU)


def _get_rng_state(count: Count, original: Any, /, *_: Any, **__: Any) -> Any:
    import torch

    count("get_rng_state")
    return torch.get_rng_state()


def _set_rng_state(count: Count, original: Any, /, new_state: Any, *_: Any, **__: Any) -> None:
    import torch

    count("set_rng_state")
    if new_state.numel() == torch.get_rng_state().numel():  # otherwise a GPU has written it
        torch.set_rng_state(new_state)


def _get_rng_states(count: Count, original: Any, /) -> list[Any]:
    return [_get_rng_state(count, original)] * int(os.environ["LOCAL_WORLD_SIZE"])


def _set_rng_states(count: Count, original: Any, /, new_states: Any) -> None:
    for new_state in new_states[:1]:
        _set_rng_state(count, original, new_state)


RNG_STATES = {
    f"{module}.{name}": substitute
    for module in ("torch.cuda", "torch.cuda.random")
    for name, substitute in (
        ("get_rng_state", _get_rng_state),
        ("set_rng_state", _set_rng_state),
        ("get_rng_state_all", _get_rng_states),
        ("set_rng_state_all", _set_rng_states),
    )
}
"""The random numbers of a GPU are those of the CPU: a device that is the CPU draws them there."""


def _device_count(count: Count, original: Any, /) -> int:
    count("device_count")
    return int(os.environ["LOCAL_WORLD_SIZE"])


WAITS = (
    "torch.cuda.synchronize", "torch.cuda.reset_peak_memory_stats", "torch.cuda.empty_cache",
    "torch.cuda.reset_max_memory_allocated", "torch.cuda.ipc_collect",
    "torch.cuda.set_per_process_memory_fraction", "torch.cuda.nvtx.range_push",
    "torch.cuda.nvtx.range_pop", "torch.accelerator.set_device_index",
    "torch.accelerator.set_device_idx", "torch.accelerator.synchronize",
)  # fmt: skip
"""Functions that only wait, measure or choose a device."""

VALUES = {
    "torch.cuda.get_device_name": CPU,
    "torch.cuda.get_device_capability": (8, 0),
    "torch.cuda.is_bf16_supported": True,
    "torch.cuda.mem_get_info": (0, 1),
    "torch.cuda.memory_summary": "",
    "torch.cuda.memory_stats": Counter(),
    "torch.cuda.get_device_properties": SimpleNamespace(
        name=CPU, total_memory=1, major=8, minor=0, multi_processor_count=1
    ),
}
"""The return values of functions that describe a device."""

FACTORIES = tuple(f"torch.{name}" for name in ("tensor", "zeros", "ones", "empty", "full", "rand"))
"""The functions that upstreams call with the name of a CUDA device."""

DDP = "torch.nn.parallel.DistributedDataParallel"

FUNCTIONS: dict[str, Substitute] = {
    **{name: returns(name, None) for name in WAITS},
    **{name: returns(name, value) for name, value in VALUES.items()},
    **RNG_STATES,
    "torch.cuda.set_device": returns("set_device", None),
    "torch.cuda.current_device": _current_device,
    "torch.cuda.is_available": returns("is_available", True),
    "torch.cuda.device_count": _device_count,
    "torch.accelerator.is_available": returns("is_available", True),
    "torch.accelerator.device_count": _device_count,
    "torch.cuda.FloatTensor": devices.make_tensor("float32"),
    "torch.cuda.ByteTensor": devices.make_tensor("uint8"),
    "torch.cuda.current_stream": streams.stream,
    "torch.cuda.default_stream": streams.stream,
    "torch.cuda.stream": streams.context("torch.cuda.stream"),
    "torch.cuda.nvtx.range": streams.context("torch.cuda.nvtx.range"),
    **dict.fromkeys(FACTORIES, devices.with_devices),
    "torch.device": devices.make_device,
    "torch.Tensor.to": devices.move,
    "torch.nn.Module.to": devices.move,
    "torch._C._nn._parse_to": devices.move,
    "torch.Tensor.cuda": devices.stay("cuda()"),
    "torch.nn.Module.cuda": devices.stay("cuda()"),
    "torch.Tensor.pin_memory": devices.stay("pin_memory()"),
    "torch.Tensor.type": devices.name_type(CUDA),
    "torch.autocast.__init__": devices.autocast,
    "torch.amp.GradScaler.__init__": devices.scale_gradients,
    "torch.set_default_device": devices.with_devices,
    "torch.load": devices.load,
    "torch.distributed.device_mesh.DeviceMesh.__init__": devices.with_devices,
    "torch.distributed.device_mesh.init_device_mesh": devices.with_devices,
    "torch.distributed.init_process_group": nccl.with_gloo(0),
    "torch.distributed.new_group": nccl.with_gloo(2),
    "torch.distributed.barrier": nccl.barrier,
    "torch.distributed.Work.get_future": nccl.get_future,
    f"{DDP}.__init__": nccl.without_gpus,
    f"{DDP}._passing_sync_batchnorm_handle": lambda *_: None,  # it refuses SyncBatchNorm on a CPU
    "torch.nn.SyncBatchNorm.forward": nccl.synchronized,
}

CLASSES: dict[str, Callable[[Count], type]] = {
    "torch.cuda.Event": streams.counted(streams.Event),
    "torch.cuda.Stream": streams.counted(streams.Stream),
    "torch.Generator": devices.generator,
}
