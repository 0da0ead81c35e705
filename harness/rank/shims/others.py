"""Shims of upstreams that need only one or two: Hugging Face's libraries, torch and others.

Torch and upstream are imported inside the functions: listing the shims must not need them.
"""

from __future__ import annotations

import builtins
import importlib
import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.bugs.api.spec import Point
from harness.rank.cuda_on_cpu import streams
from harness.rank.replacement import from_package, replace
from harness.rank.shims import stand_ins
from harness.rank.shims.stand_ins import BOTH, CPU, Count, constant, shim

NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
"""The signature of the operators that torchvision must find declared when it is imported."""


def _offline(count: Count) -> None:
    # Set before anything imports huggingface_hub, which reads the variable once.
    os.environ["HF_HUB_OFFLINE"] = "1"
    count()


def _own_transformers(count: Count, package: str) -> None:
    """Hide a transformers that is not in the same folder as this package."""
    if _folder_of("transformers") not in (None, _folder_of(package)):
        sys.modules["transformers"] = None  # type: ignore[assignment]
        count()


def _folder_of(package: str) -> Path | None:
    """The folder that a package would be imported from."""
    spec = find_spec(package)
    return Path(spec.origin).parent.parent if spec and spec.origin else None


def _old_name(count: Count, module: str, name: str, source: str = "", now: str = "") -> None:
    """Give something of torch the module or the name again that it had in older releases."""
    value = getattr(importlib.import_module(source or module), now or name)
    setattr(importlib.import_module(module), name, value)
    count()


class _Batch:
    """Operations that are waited for together."""

    def __init__(self, works: list[Any]) -> None:
        self.works = works

    def wait(self) -> None:
        """Wait for all of them."""
        for work in self.works:
            work.wait()


class _Idle:
    """Has every attribute, and as a decorator returns the function."""

    def __getattr__(self, _: str) -> _Idle:
        return self

    def __call__(self, *arguments: Any, **_: Any) -> Any:
        return arguments[0] if arguments else self


def _torchvision_operators(count: Count) -> None:
    """Declare the operators, without code for them, if torchvision cannot load its own library."""
    import torch

    try:
        importlib.import_module("torchvision")
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for operator in ("nms", "qnms"):
            torch.library.define(f"torchvision::{operator}", NMS)
        importlib.import_module("torchvision")
        count()


OFFLINE = Point(
    "huggingface_hub.offline",
    "",
    BOTH,
    "Scenarios make their models and data in code: no library may look on a hub, and a library "
    "that tries fails",
    _offline,
)
"""Applies to every run: these libraries are also dependencies of others."""

POINTS: list[Point] = [
    Point(
        "accelerate.own_transformers",
        "",
        BOTH,
        "It imports any transformers that it finds, and one from outside the overlay fails at the "
        "overlay's older huggingface_hub: that one is hidden",
        partial(_own_transformers, package="accelerate"),
    ),
    Point(
        "pytorch-lightning.own_transformers",
        "<2.2",
        BOTH,
        "Its torchmetrics imports any transformers that it finds, and one from outside the overlay "
        "fails at the overlay's other packages: that one is hidden",
        partial(_own_transformers, package="pytorch_lightning"),
    ),
    Point(
        "transformers.whole_checkpoints",
        "<4.47",
        BOTH,
        "torch 2.6 changed torch.load's default, and the Trainer of these releases resumes with "
        "it from the random states that it saved itself",
        stand_ins.whole_checkpoints,
    ),
    Point(
        "mmengine.whole_checkpoints",
        "",
        BOTH,
        "torch 2.6 changed torch.load's default, and mmengine resumes with it from the log that it "
        "saved itself",
        stand_ins.whole_checkpoints,
    ),
]


@shim(POINTS, "keras.on_torch", ">=3", BOTH)
def _keras_on_torch(count: Count) -> None:
    """Keras chooses its backend when it is imported, and takes TensorFlow by default."""
    os.environ["KERAS_BACKEND"] = "torch"
    # No settings of the user are read, and none are written into the home.
    os.environ["KERAS_HOME"] = os.devnull
    count()


@shim(POINTS, "lhotse.sampler_argument", "<1.32.2", BOTH)
def _sampler_argument(count: Count) -> None:
    """It makes torch's Sampler with an argument that was never used, and that newer releases of
    torch refuse."""
    from torch.utils.data import Sampler

    replace(Sampler, "__init__", lambda *_, **__: count(), from_package("lhotse"))


POINTS += [
    Point(
        "mosaicml.scaler_name",
        "<0.22",
        BOTH,
        "It imports a function of torch's gradient scaler from the module that had it before 2.3",
        partial(
            _old_name,
            module="torch.cuda.amp.grad_scaler",
            name="_refresh_per_optimizer_state",
            source="torch.amp.grad_scaler",
        ),
    ),
    Point(
        "prodigyopt.tensor_cuda",
        "",
        CPU,
        "It moves the two numbers that the ranks add to a GPU: they stay where they are",
        stand_ins.cuda("prodigyopt", "torch.Tensor.cuda"),
    ),
    Point(
        "schnetpack.type_name",
        "<2.2",
        BOTH,
        "It imports a type of torch's loader, which has another name since torch 2.7",
        partial(_old_name, module="torch.utils.data.dataloader", name="T_co", now="_T_co"),
    ),
]


@shim(POINTS, "torch.whole_batches", "<2.9", CPU)
def _whole_batches(count: Count) -> None:
    """Its pipelines wait for the last operation of a batch of sends and receives: NCCL makes
    one operation of a batch, and gloo does not."""
    import torch.distributed

    def together(original: Any, operations: list[Any]) -> list[Any]:
        count()
        return [_Batch(original(operations))]

    replace(torch.distributed, "batch_isend_irecv", together)


@shim(POINTS, "torch.fsdp_on_cpu", ">=2.1,<2.2", CPU)
def _fsdp_on_cpu(count: Count) -> None:
    """Its FSDP makes streams with a priority, and gathers into one tensor, as on a GPU: the CPU
    and gloo can do both since 2.2."""
    import torch.cpu
    import torch.distributed as dist

    begin = {"__init__": constant(count, None)}
    for idle in (streams.Stream, streams.Event):
        setattr(torch.cpu, idle.__name__, type(idle.__name__, (idle,), begin))
    names = dict.fromkeys(("_default_cpu_stream", "_current_stream"), streams.Stream())
    vars(torch.cpu).update(names)

    def by_parts(_: Any, whole: Any, part: Any, group: Any = None) -> None:
        count()
        dist.all_gather(list(whole.chunk(dist.get_world_size(group))), part, group)

    replace(dist, "all_gather_into_tensor", by_parts)


@shim(POINTS, "torch.no_handshake", ">=2.9,<2.10", CPU)
def _no_handshake(count: Count) -> None:
    """The stages of its pipelines first send 8 bytes to a neighbour that expects 4, which gloo
    refuses."""
    from torch.distributed import pipelining

    def nothing(*_: Any) -> list[Any]:
        count()
        return []

    replace(pipelining.PipelineStage, "_get_init_p2p_neighbors_ops", nothing)


@shim(POINTS, "torchtitan.idle_triton", "", CPU)
def _idle_triton(count: Count) -> None:
    """It imports Triton for kernels that a CPU does not use, and torch for CPUs lacks
    Triton."""
    if find_spec("triton"):
        return

    def imported(original: Any, name: str, *arguments: Any, **keywords: Any) -> Any:
        if name.partition(".")[0] != "triton":
            return original(name, *arguments, **keywords)
        count()
        return _Idle()

    replace(builtins, "__import__", imported, from_package("torchtitan"))


@shim(POINTS, "torchtitan.device_is_cpu", "", CPU)
def _device_is_cpu(count: Count) -> None:
    """It takes CUDA for the device of a machine without an accelerator."""
    import torch._utils

    cpu = constant(count, "cpu")
    replace(torch._utils, "_get_available_device_type", cpu, from_package("torchtitan"))


@shim(POINTS, "torchtitan.memory_of_cpu", "", CPU)
def _memory_of_cpu(count: Count) -> None:
    """Its Trainer logs the memory of the device, which torch.cpu has no functions for."""
    import torch.cpu

    vars(torch.cpu).update(
        get_device_name=constant(count, "cpu"),
        get_device_properties=constant(count, SimpleNamespace(total_memory=1)),
        memory_stats=constant(count, {}),
        reset_peak_memory_stats=constant(count, None),
        empty_cache=constant(count, None),
    )


@shim(POINTS, "torchtitan.whole_numbers_counted", "<0.3", CPU)
def _whole_numbers_counted(count: Count) -> None:
    """It counts the tokens of each expert with torch.histc, which cannot count whole numbers on
    a CPU."""
    import torch

    def counted(original: Any, numbers: Any, *arguments: Any, **keywords: Any) -> Any:
        if numbers.is_floating_point():
            return original(numbers, *arguments, **keywords)
        count()
        return original(numbers.float(), *arguments, **keywords).to(numbers.dtype)

    replace(torch, "histc", counted, from_package("torchtitan"))


POINTS += [
    *(
        Point(
            f"{package}.torchvision_operators",
            releases,
            BOTH,
            "It imports torchvision, whose published wheel is for one release of torch and for "
            "CUDA: beside another torch its operators cannot be loaded, and nothing here calls "
            "them",
            _torchvision_operators,
        )
        for package, releases in (
            ("lightly", ""),
            ("lightly-train", ""),
            ("litdata", "<0.2.3"),
            ("mmengine", "<0.5"),
            ("mosaicml", ""),
            ("mosaicml-streaming", ""),
            ("open-clip-torch", ""),
            ("timm", ""),
        )
    )
]
