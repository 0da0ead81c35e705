"""What functions that take or move to a device do on a CPU.

A substitute gets a counter of uses, the original function, and the arguments of the call. The first
two are positional: functions of torch have arguments of such names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.rank.replacement import Substitute

CUDA, CPU = "cuda", "cpu"

Count = Callable[[str], None]
"""Counts a use of this kind."""


def device_on_cpu(value: Any, count: Count) -> Any:
    """The CPU instead of a GPU, counted; any other value unchanged."""
    import torch

    if isinstance(value, str) and value.partition(":")[0] == CUDA:
        count(CUDA)
        return CPU
    if isinstance(value, torch.device) and value.type == CUDA:
        count(CUDA)
        return torch.device(CPU)
    return value


def number_on_cpu(value: Any, count: Count) -> Any:
    """The CPU instead of the number of a GPU; any other value unchanged."""
    if type(value) is not int:
        return value
    count(CUDA)
    return CPU


def with_devices(count: Count, original: Any, /, *arguments: Any, **keywords: Any) -> Any:
    """Call a function with the CPU instead of each GPU among its arguments."""
    keywords = {name: device_on_cpu(value, count) for name, value in keywords.items()}
    if "device" in keywords:
        keywords["device"] = number_on_cpu(keywords["device"], count)
    return original(*(device_on_cpu(value, count) for value in arguments), **keywords)


def move(count: Count, original: Any, /, *arguments: Any, **keywords: Any) -> Any:
    """Call ``to``, in which a number is a GPU as well."""
    arguments = tuple(number_on_cpu(value, count) for value in arguments)
    return with_devices(count, original, *arguments, **keywords)


def make_device(count: Count, original: Any, /, *arguments: Any, **keywords: Any) -> Any:
    """Make a ``torch.device``: a CPU has no number."""
    if len(arguments) == 2:
        arguments = arguments[:1]
    return with_devices(count, original, *arguments, **keywords)


def stay(kind: str) -> Substitute:
    """Return the tensor or the module itself, where it is."""

    def substitute(count: Count, original: Any, /, tensor: Any, *_: Any, **__: Any) -> Any:
        count(kind)
        return tensor

    return substitute


def name_type(device: str) -> Substitute:
    """Let ``Tensor.type()`` name a device: torch.cuda.FloatTensor."""

    def substitute(count: Count, original: Any, /, *arguments: Any, **keywords: Any) -> Any:
        result = original(*arguments, **keywords)
        if not isinstance(result, str):  # a cast
            return result
        count("type()")
        return f"torch.{device}.{result.rpartition('.')[2]}"  # a shim and probe may both do it

    return substitute


def make_tensor(dtype: str) -> Substitute:
    """Make a tensor as a constructor of one type does, such as torch.cuda.FloatTensor."""

    def substitute(count: Count, original: Any, /, data: Any) -> Any:
        import torch

        count(CUDA)
        return torch.tensor(data, dtype=getattr(torch, dtype))

    return substitute


def generator(count: Count) -> type:
    """A ``torch.Generator`` of the CPU."""
    import torch

    class Generator(torch.Generator):
        def __new__(cls, device: Any = CPU) -> Generator:
            return super().__new__(cls, device_on_cpu(device, count))  # type: ignore[call-arg]

    return Generator


def load(
    count: Count, original: Any, /, f: Any, map_location: Any = None, *arguments: Any, **others: Any
) -> Any:
    """Load a file onto the CPU, not onto GPUs."""
    location = CPU if isinstance(map_location, Mapping) else device_on_cpu(map_location, count)
    return original(f, location, *arguments, **others)


def autocast(
    count: Count, original: Any, /, context: Any, device_type: Any, *arguments: Any, **keywords: Any
) -> Any:
    """Cast as on a GPU, whose type by default is another one than that of a CPU."""
    import torch

    device = device_on_cpu(device_type, count)
    if device is not device_type and not arguments and keywords.get("dtype") is None:
        keywords["dtype"] = torch.get_autocast_dtype(CUDA)
    return original(context, device, *arguments, **keywords)


def scale_gradients(
    count: Count, original: Any, /, scaler: Any, device: Any = CUDA, *arguments: Any, **others: Any
) -> Any:
    """Make a ``GradScaler``, which is for GPUs by default."""
    return original(scaler, device_on_cpu(device, count), *arguments, **others)
