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
    cuda.Event = _Event
    for name in ("current_stream", "default_stream"):
        setattr(cuda, name, _counted(count, _stream))
    cuda.current_device = _counted(count, lambda: torch.device("cpu"))
    cuda.FloatTensor = _counted(count, lambda data: torch.tensor(data, dtype=torch.float32))
    cuda.nvtx.range = _range
    cuda.nvtx.range_push = _counted(count, _nothing)
    cuda.nvtx.range_pop = _counted(count, _nothing)
    for kind in (torch.nn.Module, torch.Tensor):
        kind.to = _to_cpu(kind.to, count)  # type: ignore[assignment,method-assign]


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


def _to_cpu(original: Callable[..., Any], count: Count) -> Callable[..., Any]:
    def cpu_for(value: Any) -> Any:
        import torch

        named = value if isinstance(value, str) else getattr(value, "type", None)
        if not (isinstance(named, str) and named.startswith("cuda")):
            return value
        count()
        return torch.device("cpu")

    @wraps(original)
    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = cpu_for(kwargs["device"])
        return original(self, *map(cpu_for, args), **kwargs)

    return to


class _Event:
    """A torch.cuda.Event by the host's clock; milliseconds."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: _Event) -> float:
        return 1e3 * (end.at - self.at)


class _Stream:
    """The only stream there is."""

    def wait_event(self, _: Any) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _stream(*_: Any) -> _Stream:
    return _Stream()


@contextmanager
def _range(*_: Any, **__: Any) -> Iterator[None]:
    yield
