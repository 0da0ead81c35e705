"""What several shims are made of: modules that are gone, and torch.cuda on a box without CUDA."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Count = Callable[[], None]


def getter(module: str, count: Count, names: Mapping[str, Any]) -> Callable[[str], Any]:
    """A module's ``__getattr__`` that answers for ``names`` and counts each answer."""

    def answer(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        count()
        return names[name]

    return answer


def module(name: str, count: Count, **names: Any) -> ModuleType:
    """An importable module that holds just ``names``."""
    made = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)  # find_spec, with which transformers looks, insists
    made.__getattr__ = getter(name, count, names)  # type: ignore[method-assign]
    sys.modules[name] = made
    return made


def cuda_on_cpu(count: Count) -> None:
    """Let torch.cuda mean the CPU: devices, events, streams, counters and the tensor types."""
    import torch

    cuda: Any = torch.cuda
    # A function of its own for each name: torch.compile's tables refuse one under two names.
    for name in ("set_device", "synchronize", "reset_peak_memory_stats", "empty_cache"):
        setattr(cuda, name, _counted(count, _nothing))
    cuda.Event, cuda.Stream = Event, Stream
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, _counted(count, _stream))
    cuda.current_device = _counted(count, lambda: torch.device("cpu"))
    cuda.FloatTensor = _counted(count, lambda data: torch.tensor(data, dtype=torch.float32))
    cuda.ByteTensor = _counted(count, lambda data: torch.tensor(data, dtype=torch.uint8))
    cuda.nvtx.range = _range
    cuda.nvtx.range_push = _counted(count, _nothing)
    cuda.nvtx.range_pop = _counted(count, _nothing)
    for kind in (torch.nn.Module, torch.Tensor):
        kind.to = _to_cpu(kind.to, count)  # type: ignore[assignment,method-assign]


FACTORIES = ("tensor", "zeros", "ones", "empty", "full", "rand")
"""The functions of torch that upstreams give a device of CUDA by name."""


def made_on_cpu(package: str, count: Count) -> None:
    """Let tensors that a package's code makes on a device of CUDA be made on the CPU."""
    import torch

    for name in FACTORIES:
        factory = _cpu_factory(getattr(torch, name), count)
        answered_in(package, torch, name, _nothing, factory)


def _cpu_factory(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    def make(_: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _cpu_for(kwargs["device"], count)
        return original(*args, **kwargs)

    return make


def tensor_cuda(package: str, count: Count) -> None:
    """Let ``Tensor.cuda()``, called by a package's code, be the identity."""
    import torch

    answered_in(package, torch.Tensor, "cuda", count, lambda _, tensor, *__, **___: tensor)


def type_names(device: str, count: Count) -> None:
    """Let ``Tensor.type()`` of a CPU tensor name a device: torch.cuda.FloatTensor, say."""
    import torch

    original = torch.Tensor.type

    def type_(self: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, *args, **kwargs)
        if not isinstance(answer, str):
            return answer
        count()
        return answer.replace("torch.", f"torch.{device}.", 1)

    torch.Tensor.type = type_  # type: ignore[assignment,method-assign]


def answered_in(package: str, owner: Any, name: str, count: Count, answer: Any) -> None:
    """Let ``owner.name`` be ``answer`` for calls from the code of one package alone, each counted.

    Everybody else gets what was there before: torch itself, other packages, other shims.
    ``answer`` gets the original as its first argument.
    """
    original = getattr(owner, name)

    @wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if not f"{caller}.".startswith(f"{package}."):
            return original(*args, **kwargs)
        count()
        return answer(original, *args, **kwargs)

    setattr(owner, name, call)


def _counted(count: Count, function: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        count()
        return function(*args, **kwargs)

    return call


def _cpu_for(value: Any, count: Count) -> Any:
    """The CPU for a device of CUDA, counted; anything else as it is."""
    import torch

    named = value if isinstance(value, str) else getattr(value, "type", None)
    if not (isinstance(named, str) and named.startswith("cuda")):
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
    """A torch.cuda.Event by the host's clock; milliseconds."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return 1e3 * (end.at - self.at)


class Stream:
    """The only stream there is."""

    def wait_event(self, _: Any) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _stream(*_: Any) -> Stream:
    return Stream()


@contextmanager
def _range(*_: Any, **__: Any) -> Iterator[None]:
    yield
