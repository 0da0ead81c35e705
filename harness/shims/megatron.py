"""What megatron-core's releases need on a box without a GPU, or without NVIDIA's apex.

Those that change torch answer megatron-core's own code alone: DeepSpeed, which runs it in other
scenarios, and torch itself see nothing of them. Torch is imported inside the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.shims import apex, stand_ins
from harness.spec import Lane, Point

BOTH = (Lane.CPU, Lane.GPU)
CPU = (Lane.CPU,)
FACTORIES = ("tensor", "zeros", "ones", "empty", "full")
"""The functions of torch that megatron-core gives the literal device ``cuda``."""


def _eager_compile(count: Callable[[], None]) -> None:
    import torch

    def compile(model: Any = None, **options: Any) -> Any:
        count()
        return (lambda function: function) if model is None else model

    torch.compile = compile  # type: ignore[assignment]


def _current_device(count: Callable[[], None]) -> None:
    import torch

    _for_megatron(torch.cuda, "current_device", count, lambda _: torch.device("cpu"))


def _synchronize(count: Callable[[], None]) -> None:
    import torch

    _for_megatron(torch.cuda, "synchronize", count, lambda *_, **__: None)


def _cuda_literal(count: Callable[[], None]) -> None:
    import torch

    for name in FACTORIES:
        original = getattr(torch, name)
        counting = _counting_factory(original, count)
        _for_megatron(torch, name, _nothing, counting)


def _counting_factory(original: Any, count: Callable[[], None]) -> Callable[..., Any]:
    def make(_: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") == "cuda":
            count()
            kwargs["device"] = "cpu"
        return original(*args, **kwargs)

    return make


def _tensor_cuda(count: Callable[[], None]) -> None:
    import torch

    _for_megatron(torch.Tensor, "cuda", count, lambda _, tensor, *__, **___: tensor)


def _type_names(count: Callable[[], None]) -> None:
    import torch

    def named(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(tensor, *args, **kwargs)
        return answer.replace("torch.", "torch.cuda.", 1) if isinstance(answer, str) else answer

    _for_megatron(torch.Tensor, "type", count, named)


def _for_megatron(owner: Any, name: str, count: Callable[[], None], answer: Any) -> None:
    stand_ins.answered_in("megatron", owner, name, count, answer)


def _nothing() -> None:
    pass


def _apex_optimizers(count: Callable[[], None]) -> None:
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


POINTS = (
    Point(
        "megatron-core.current_device", "megatron-core", ">=0.4", CPU,
        "it allocates its buffers on torch.cuda.current_device(): to megatron-core, that is the "
        "CPU here",
        _current_device,
    ),
    Point(
        "megatron-core.synchronize", "megatron-core", ">=0.4", CPU,
        "it waits for the GPU around its pipeline's messages: there is nothing to wait for",
        _synchronize,
    ),
    Point(
        "megatron-core.cuda_literal", "megatron-core", ">=0.4", CPU,
        "it makes tensors with the literal device 'cuda': they are made on the CPU",
        _cuda_literal,
    ),
    Point(
        "megatron-core.tensor_cuda", "megatron-core", ">=0.4", CPU,
        "it moves tied weights with Tensor.cuda(): they stay where they are",
        _tensor_cuda,
    ),
    Point(
        "megatron-core.cuda_type_names", "megatron-core", ">=0.4", CPU,
        "its optimizers take only parameters whose Tensor.type() is a torch.cuda name, so that is "
        "the name reported to them: this shim says something untrue",
        _type_names,
    ),
    Point(
        "megatron-core.apex_optimizers", "megatron-core", ">=0.6,<0.10", BOTH,
        "they import NVIDIA's apex for their optimizers: where it is missing, torch's AdamW and "
        "SGD stand in for FusedAdam and FusedSGD, and its other kernels raise if they are called; "
        "where it is installed it is used, and this counts nothing",
        _apex_optimizers,
    ),
    Point(
        "megatron-core.eager_compile", "megatron-core", ">=0.5", CPU,
        "its functions under torch.compile run as written: loading the compiler takes each rank "
        "longer than the whole training",
        _eager_compile,
    ),
)  # fmt: skip
