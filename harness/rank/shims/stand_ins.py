"""Parts of several shims: modules that no longer exist, and torch.cuda without CUDA."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any

from harness.bugs.api.spec import Lane

BOTH = (Lane.CPU, Lane.GPU)
CPU = (Lane.CPU,)
Count = Callable[[], None]


def getter(module: str, count: Count, names: Mapping[str, Any]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that returns what ``names`` has, and counts each access."""

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        count()
        return names[name]

    return get


def module(name: str, count: Count, **names: Any) -> ModuleType:
    """An importable module that contains only ``names``."""
    stand_in = ModuleType(name)
    stand_in.__spec__ = ModuleSpec(name, None)  # transformers uses find_spec, which needs it
    stand_in.__getattr__ = getter(name, count, names)  # type: ignore[method-assign]
    sys.modules[name] = stand_in
    return stand_in


def cuda_on_cpu(count: Count) -> None:
    """Make torch.cuda work on the CPU: devices, events, streams, counters and tensor types."""
    import torch

    cuda: Any = torch.cuda
    # One function for each name: torch.compile refuses one function under two names.
    for name in ("set_device", "synchronize", "reset_peak_memory_stats", "empty_cache"):
        setattr(cuda, name, _counted(count, _nothing))
    cuda.Event, cuda.Stream = Event, Stream
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, _counted(count, lambda *_: Stream()))
    cuda.current_device = _counted(count, lambda: torch.device("cpu"))
    cuda.FloatTensor = _counted(count, lambda data: torch.tensor(data, dtype=torch.float32))
    cuda.ByteTensor = _counted(count, lambda data: torch.tensor(data, dtype=torch.uint8))
    cuda.nvtx.range = _range
    cuda.nvtx.range_push = _counted(count, _nothing)
    cuda.nvtx.range_pop = _counted(count, _nothing)
    for kind in (torch.nn.Module, torch.Tensor):
        kind.to = _to_cpu(kind.to, count)  # type: ignore[assignment,method-assign]


FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "rand")
"""The functions of torch that upstreams call with the name of a CUDA device."""


def made_on_cpu(package: str, count: Count) -> None:
    """Create the tensors that a package's code creates on a CUDA device on the CPU instead."""
    import torch

    for name in FACTORIES:
        factory = _cpu_factory(getattr(torch, name), count)
        replace_for(package, torch, name, _nothing, factory)


def _cpu_factory(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    def make(_: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _cpu_for(kwargs["device"], count)
        return original(*args, **kwargs)

    return make


def tensor_cuda(package: str, count: Count) -> None:
    """Make ``Tensor.cuda()``, called by a package's code, return the tensor itself."""
    import torch

    replace_for(package, torch.Tensor, "cuda", count, lambda _, tensor, *__, **___: tensor)


def type_names(package: str, device: str, count: Count) -> None:
    """Let ``Tensor.type()``, called by a package's code, name a device: torch.cuda.FloatTensor."""
    import torch

    def type_(original: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(tensor, *args, **kwargs)
        if not isinstance(result, str):  # a cast
            return result
        count()
        return result.replace("torch.", f"torch.{device}.", 1)

    replace_for(package, torch.Tensor, "type", _nothing, type_)


def replace_for(package: str, owner: Any, name: str, count: Count, substitute: Any) -> None:
    """Replace ``owner.name`` for calls from the code of one package only, and count these calls.

    All other callers still get the original: torch itself and other packages. Several replacements
    of one function work in any order: see ``_caller``. ``substitute`` gets the original as its
    first argument.
    """
    original = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not f"{_caller()}.".startswith(f"{package}."):
            return original(*args, **kwargs)
        count()
        return substitute(original, *args, **kwargs)

    setattr(owner, name, call)


def _caller() -> str:
    """The module that called a replaced function.

    The frames of this module are not it: where two packages replace one function, the outer
    replacement calls the inner one.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")) if frame else ""


def _counted(count: Count, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        count()
        return function(*args, **kwargs)

    return call


def _cpu_for(value: Any, count: Count) -> Any:
    """The CPU instead of a CUDA device, counted; any other value unchanged."""
    import torch

    device = value if isinstance(value, str) else getattr(value, "type", None)
    if not (isinstance(device, str) and device.startswith("cuda")):
        return value
    count()
    return torch.device("cpu")


def _to_cpu(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    @wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _cpu_for(kwargs["device"], count)
        return original(self, *(_cpu_for(value, count) for value in args), **kwargs)

    return to


class Event:
    """A torch.cuda.Event that uses the host's clock, in milliseconds."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Stream:
    """A torch.cuda.Stream that does nothing."""

    def wait_event(self, _: Any) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _nothing(*_: Any, **__: Any) -> None:
    pass


@contextmanager
def _range(*_: Any, **__: Any) -> Iterator[None]:
    yield


def whole_checkpoints(count: Count) -> None:
    """Load a checkpoint with all its objects, as ``torch.load`` did by default before 2.6."""
    import torch

    original = torch.load

    def load(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("weights_only") is None:
            count()
            kwargs["weights_only"] = False
        return original(*args, **kwargs)

    torch.load = load
