"""What DeepSpeed's releases need on a newer torch, or on a machine without a GPU.

Torch and DeepSpeed are imported inside the functions: listing the shims must not need them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

from harness.bugs.api.spec import Point
from harness.rank import cuda_on_cpu
from harness.rank.cuda_on_cpu.devices import name_type
from harness.rank.cuda_on_cpu.functions import FACTORIES
from harness.rank.cuda_on_cpu.streams import Event, Stream
from harness.rank.replacement import from_package, replace
from harness.rank.shims import stand_ins
from harness.rank.shims.stand_ins import BOTH, CPU, Count, constant, shim

COUNTED = (
    "torch.cuda.set_device", "torch.cuda.synchronize", "torch.cuda.reset_peak_memory_stats",
    "torch.cuda.empty_cache", "torch.cuda.current_stream", "torch.cuda.default_stream",
    "torch.cuda.current_device", "torch.cuda.FloatTensor", "torch.cuda.ByteTensor",
    "torch.cuda.nvtx.range_push", "torch.cuda.nvtx.range_pop", "torch.Tensor.to",
    "torch.nn.Module.to",
)  # fmt: skip
UNCOUNTED = ("torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.nvtx.range")
"""To make one of these is no use of the shim, as nothing is done for it."""

POINTS: list[Point] = []


@shim(POINTS, "deepspeed.torch_six", "<0.9", BOTH)
def _torch_six(count: Count) -> None:
    """torch 2 removed torch._six, from which these releases import the constant inf."""
    import torch

    six = stand_ins.module("torch._six", count, inf=float("inf"), string_classes=(str, bytes))
    torch._six = six  # type: ignore[attr-defined]


@shim(POINTS, "deepspeed.collection_types", "<0.6", BOTH)
def _collection_types(count: Count) -> None:
    """Python 3.10 moved the types, such as Mapping, that they take from collections."""
    import collections
    from collections import abc

    names = {name: getattr(abc, name) for name in abc.__all__}
    module: Any = collections
    module.__getattr__ = stand_ins.getter("collections", count, names)


@shim(POINTS, "deepspeed.elastic_names", ">=0.7,<0.14.5", BOTH)
def _elastic_names(count: Count) -> None:
    """torch 2.11 removed two names that the (unused) elastic agent imports."""
    import importlib
    import logging

    # A function with the name of the module hides it from attribute access.
    api: Any = importlib.import_module("torch.distributed.elastic.agent.server.api")
    lost = {"log": logging.getLogger("torch.distributed.elastic"), "_get_socket_with_port": None}
    gone = {name: value for name, value in lost.items() if not hasattr(api, name)}
    if gone:
        api.__getattr__ = stand_ins.getter(api.__name__, count, gone)


@shim(POINTS, "deepspeed.cuda_stand_ins", "<0.9", CPU)
def _cuda(count: Count) -> None:
    """Releases without a CPU accelerator call torch.cuda directly: here its device is the CPU,
    and its events, streams and memory counters do nothing."""
    # For all callers: torch's own code gets devices and streams from here, and goes on with them.
    cuda_on_cpu.install(COUNTED, lambda _: count())
    cuda_on_cpu.install(UNCOUNTED, lambda _: None)


POINTS += [
    Point(
        "deepspeed.cuda_available",
        "<0.9",
        CPU,
        "They refuse fp16 where torch.cuda is not available: it is reported to them as available",
        stand_ins.cuda("deepspeed", "torch.cuda.is_available"),
    ),
    Point(
        "deepspeed.cuda_devices",
        "<0.9",
        CPU,
        "They make tensors on the device of torch.cuda: they are made on the CPU",
        stand_ins.cuda("deepspeed", *FACTORIES),
    ),
    Point(
        "deepspeed.tensor_cuda",
        "<0.9",
        CPU,
        "They move tensors with Tensor.cuda(): they stay where they are",
        stand_ins.cuda("deepspeed", "torch.Tensor.cuda"),
    ),
    Point(
        "deepspeed.cuda_type_names",
        "<0.9",
        CPU,
        "They reduce only gradients whose Tensor.type() is a torch.cuda name, so that name is "
        "reported to them, which is untrue",
        stand_ins.cuda("deepspeed", "torch.Tensor.type"),
    ),
]


@shim(POINTS, "deepspeed.cpu_type_names", ">=0.9,<0.13", CPU)
def _cpu_type_names(count: Count) -> None:
    """They reduce only gradients whose Tensor.type() contains the name of the accelerator:
    torch.cpu.FloatTensor, a name that torch has never used for CPU tensors."""
    import torch

    substitute = partial(name_type("cpu"), lambda _: count())
    replace(torch.Tensor, "type", substitute, from_package("deepspeed"))


@shim(POINTS, "deepspeed.intel_modules", ">=0.9,<0.14.1", CPU)
def _intel_modules(count: Count) -> None:
    """Their CPU accelerator imports two Intel packages; empty modules replace them."""
    for name in ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch"):
        stand_ins.module(name, count)
    count()


@shim(POINTS, "deepspeed.gloo_for_ccl", ">=0.9,<0.14.1", CPU)
def _gloo_for_ccl(count: Count) -> None:
    """Their CPU accelerator selects oneCCL; gloo is used instead."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # type: ignore[import-not-found]

    CPU_Accelerator.communication_backend_name = constant(count, "gloo")


@shim(POINTS, "deepspeed.cpu_events", ">=0.9,<0.10.1", CPU)
def _cpu_events(count: Count) -> None:
    """Their CPU accelerator has None for events and streams, which their ZeRO optimizer
    needs."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # type: ignore[import-not-found]

    def factory(kind: type) -> Callable[..., Any]:
        def make(**options: Any) -> Any:
            count()
            return kind(**options)

        return make

    event, stream = factory(Event), factory(Stream)
    CPU_Accelerator.Event, CPU_Accelerator.Stream = property(lambda _: event), lambda _: stream()
    CPU_Accelerator.stream = lambda *_: nullcontext()


@shim(POINTS, "deepspeed.cpu_streams", ">=0.9,<0.14", CPU)
def _cpu_streams(count: Count) -> None:
    """Their CPU accelerator has None for the current stream, for which ZeRO-3 waits (before
    0.13 only on one rank)."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # type: ignore[import-not-found]

    stream = constant(count, Stream())
    CPU_Accelerator.current_stream = CPU_Accelerator.default_stream = stream


@shim(POINTS, "deepspeed.cpu_new_streams", ">=0.10,<0.19.8", CPU)
def _cpu_new_streams(count: Count) -> None:
    """Their CPU accelerator has None for a new stream, which activation checkpointing makes."""
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    CPU_Accelerator.Stream = property(lambda _: constant(count, Stream()))


@shim(POINTS, "deepspeed.cpu_zero3", ">=0.9,<0.10.1", CPU)
def _cpu_zero3(count: Count) -> None:
    """Their ZeRO-3 records the stream that uses a parameter, and reads how often the memory was
    full; their CPU accelerator has neither."""
    import torch
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator

    def record(original: Any, tensor: Any, stream: Any) -> None:
        if isinstance(stream, torch.Stream):
            original(tensor, stream)
        else:
            count()

    replace(torch.Tensor, "record_stream", record)
    CPU_Accelerator.memory_stats = constant(count, Counter[str]())


@shim(POINTS, "deepspeed.fp16_on_cpu", ">=0.9", CPU)
def _fp16_on_cpu(count: Count) -> None:
    """Their CPU accelerator reports that it has no fp16 (later: only with the processor's own
    instructions), so the engine refuses fp16; torch computes it on any CPU, slowly."""
    import torch
    from deepspeed.accelerator.cpu_accelerator import CPU_Accelerator  # type: ignore[import-not-found]

    # 0.9 does not have this list yet, and nothing in it reads one.
    supported_dtypes: Any = getattr(CPU_Accelerator, "supported_dtypes", lambda _: [])

    def with_fp16(self: Any) -> list[torch.dtype]:
        count()
        return list(dict.fromkeys([*supported_dtypes(self), torch.float16]))

    CPU_Accelerator.is_fp16_supported = constant(count, True)
    CPU_Accelerator.supported_dtypes = with_fp16


@shim(POINTS, "deepspeed.flatten_helper", "<0.9", BOTH)
def _flatten_helper(count: Count) -> None:
    """At start they compile a C++ helper that calls torch's flatten and unflatten: these are
    called directly, without compiling."""
    import torch._utils
    from deepspeed.ops.op_builder import UtilsBuilder  # type: ignore[import-not-found]

    helpers = SimpleNamespace(
        flatten=torch._utils._flatten_dense_tensors, unflatten=torch._utils._unflatten_dense_tensors
    )

    UtilsBuilder.load = constant(count, helpers)


@shim(POINTS, "deepspeed.gather_into_detached", ">=0.9", CPU)
def _detached_output(count: Count) -> None:
    """Some gather parameters into a flat buffer that requires grad: NCCL writes into it, gloo
    copies into views of it, which autograd forbids; gloo gets the same memory, detached."""
    import torch

    def gather(
        original: Any, output_tensor: Any, input_tensor: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if output_tensor.requires_grad:
            count()
            output_tensor, input_tensor = output_tensor.detach(), input_tensor.detach()
        return original(output_tensor, input_tensor, *args, **kwargs)

    replace(torch.distributed, "all_gather_into_tensor", gather)


@shim(POINTS, "deepspeed.gathers_in_order", ">=0.9", CPU)
def _gathers_in_order(count: Count) -> None:
    """When they gather several parameters they wait only for the last one: NCCL works in order,
    gloo does not, so each is waited for."""
    import torch

    def gather(original: Any, *args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        if work is not None:
            count()
            work.wait()
        return work

    replace(torch.distributed, "all_gather_into_tensor", gather)


@shim(POINTS, "deepspeed.shm_comm", ">=0.14", CPU)
def _shm_comm(count: Count) -> None:
    """At start they compile a shared-memory all-reduce, for over half a minute; gloo does not
    need it."""
    import deepspeed  # type: ignore[import-not-found]  # noqa: F401

    # `import deepspeed.comm.torch as x` would give the real torch, which that package imports.
    comm: ModuleType = sys.modules["deepspeed.comm.torch"]
    comm.build_shm_op = count  # type: ignore[attr-defined]


POINTS += [
    Point(
        "deepspeed.whole_checkpoints",
        "<0.17",
        BOTH,
        "Since torch 2.6 torch.load accepts only plain tensors by default, and the checkpoints of "
        "these releases contain their own objects",
        stand_ins.whole_checkpoints,
    )
]
