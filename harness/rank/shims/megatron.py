"""What megatron-core's releases need on a machine without a GPU, or without NVIDIA's apex.

Shims that change torch affect only calls from megatron-core's own code: DeepSpeed, which runs it in
other scenarios, and torch itself are not affected. Torch is imported inside the functions.
"""

from __future__ import annotations

import builtins
import importlib
from importlib.util import find_spec
from typing import Any

from harness.bugs.api.spec import Point
from harness.rank import apex
from harness.rank.cuda_on_cpu.functions import FACTORIES
from harness.rank.replacement import replace
from harness.rank.shims import stand_ins
from harness.rank.shims.stand_ins import BOTH, CPU, Count, shim

POINTS: list[Point] = [
    Point(
        "megatron-core.current_device",
        ">=0.4",
        CPU,
        "It allocates its buffers on torch.cuda.current_device(): here that returns the CPU",
        stand_ins.cuda("megatron", "torch.cuda.current_device"),
    ),
    Point(
        "megatron-core.synchronize",
        ">=0.4",
        CPU,
        "It waits for the GPU around its pipeline's messages: here that returns at once",
        stand_ins.cuda("megatron", "torch.cuda.synchronize"),
    ),
    Point(
        "megatron-core.current_stream",
        ">=0.19",
        CPU,
        "It uses the GPU's stream when it reduces gradients: here that is one that does nothing",
        stand_ins.cuda("megatron", "torch.cuda.current_stream"),
    ),
    Point(
        "megatron-core.cuda_literal",
        ">=0.4",
        CPU,
        "It makes tensors with the literal device 'cuda': they are made on the CPU",
        stand_ins.cuda("megatron", *FACTORIES),
    ),
    Point(
        "megatron-core.tensor_cuda",
        ">=0.4",
        CPU,
        "It moves tied weights with Tensor.cuda(): they stay where they are",
        stand_ins.cuda("megatron", "torch.Tensor.cuda"),
    ),
    Point(
        "megatron-core.cuda_type_names",
        ">=0.4",
        CPU,
        "Its optimizers take only parameters whose Tensor.type() is a torch.cuda name, so that "
        "name is reported to them, which is untrue",
        stand_ins.cuda("megatron", "torch.Tensor.type"),
    ),
    Point(
        "megatron-core.rng_state",
        ">=0.4",
        CPU,
        "Where it recomputes activations it saves the state of the GPU's random numbers: here that "
        "of the CPU's",
        stand_ins.cuda("megatron", "torch.cuda.get_rng_state", "torch.cuda.random.get_rng_state"),
    ),
]


@shim(POINTS, "megatron-core.pkg_resources", ">=0.7,<0.9", BOTH)
def _pkg_resources(count: Count) -> None:
    """They import the package packaging through pkg_resources, which setuptools has removed."""
    import packaging.version

    if find_spec("pkg_resources") is None:
        stand_ins.module("pkg_resources", count, packaging=packaging)


@shim(POINTS, "megatron-core.apex_optimizers", ">=0.6,<0.10", BOTH)
def _apex_optimizers(count: Count) -> None:
    """They import NVIDIA's apex for their optimizers: where it is missing, torch's AdamW and
    SGD stand in for FusedAdam and FusedSGD, and its other kernels raise if they are called;
    where it is installed it is used, and this counts nothing."""
    if apex.installed():
        return
    import torch

    def refuse(*_: Any, **__: Any) -> None:
        raise NotImplementedError("a fused kernel of NVIDIA's apex, which is not installed here")

    stand_ins.module("apex", count)
    stand_ins.module(
        "apex.optimizers", count, FusedAdam=torch.optim.AdamW, FusedSGD=torch.optim.SGD
    )
    stand_ins.module("apex.multi_tensor_apply", count, multi_tensor_applier=refuse)
    kernels = dict.fromkeys(("multi_tensor_l2norm", "multi_tensor_scale"), refuse)
    stand_ins.module("amp_C", count, **kernels)


@shim(POINTS, "megatron-core.undefined_gemm", ">=0.13,<0.17", BOTH)
def _undefined_gemm(count: Count) -> None:
    """Without Transformer Engine the MoE router stops at the name te_general_gemm, which a
    failed import has left undefined: here it is None, as in 0.17, and torch multiplies."""
    # Python looks among the builtins for a name that a module does not define.
    if find_spec("transformer_engine") is None:
        builtins.te_general_gemm = None  # type: ignore[attr-defined]
        count()


@shim(POINTS, "megatron-core.eager_compile", ">=0.5", CPU)
def _eager_compile(count: Count) -> None:
    """Its functions under torch.compile run as written: loading the compiler takes each rank
    longer than the whole training."""
    import torch

    def compile(model: Any = None, **options: Any) -> Any:
        count()
        return (lambda function: function) if model is None else model

    torch.compile = compile  # type: ignore[assignment]


@shim(POINTS, "megatron-core.nothing_to_quantize", ">=0.12,<0.13", BOTH)
def _nothing_to_quantize(count: Count) -> None:
    """Without Transformer Engine their distributed optimizer refuses to quantize parameters to
    fp8, even if there are none."""

    def quantize(original: Any, parameters: Any, *others: Any) -> None:
        if parameters:
            original(parameters, *others)
        else:
            count()

    fp8 = importlib.import_module("megatron.core.fp8_utils")
    replace(fp8, "_quantize_param_shard_impl", quantize)
