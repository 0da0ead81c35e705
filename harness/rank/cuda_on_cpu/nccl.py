"""What torch.distributed does with gloo where NCCL and GPUs are requested."""

from __future__ import annotations

from typing import Any

from harness.rank.cuda_on_cpu.devices import Count
from harness.rank.replacement import Substitute


def with_gloo(position: int) -> Substitute:
    """Call a function whose argument ``position`` is a backend, with gloo instead of NCCL."""

    def backend(name: Any, count: Count) -> Any:
        if isinstance(name, str) and "nccl" in name.lower():
            count("nccl")
            return "gloo"
        return name

    def substitute(count: Count, original: Any, /, *arguments: Any, **keywords: Any) -> Any:
        positional = list(arguments)
        if len(positional) > position:
            positional[position] = backend(positional[position], count)
        if "backend" in keywords:
            keywords["backend"] = backend(keywords["backend"], count)
        if keywords.pop("device_id", None) is not None:
            count("device_id")
        return original(*positional, **keywords)

    return substitute


def barrier(
    count: Count, original: Any, /, *arguments: Any, device_ids: Any = None, **keywords: Any
) -> Any:
    """Wait without GPUs, which gloo does not take."""
    if device_ids is not None:
        count("device_ids")
    return original(*arguments, **keywords)


def get_future(count: Count, original: Any, /, work: Any) -> Any:
    """Return the future of an operation, also of a reduce-scatter, for which gloo lacks it."""
    from torch.futures import Future

    try:
        return original(work)
    except RuntimeError:
        count("get_future")
        work.wait()
    future: Future[None] = Future()
    future.set_result(None)
    return future


def without_gpus(
    count: Count, original: Any, /, model: Any, module: Any, *arguments: Any, **keywords: Any
) -> None:
    """Make a ``DistributedDataParallel`` without its arguments that name GPUs."""
    for name in ("device_ids", "output_device"):
        if keywords.pop(name, None) is not None:
            count(name)
    original(model, module, *([None] * len(arguments[:2])), *arguments[2:], **keywords)
