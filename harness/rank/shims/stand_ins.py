"""Parts of several shims: modules that no longer exist, and torch.cuda for one package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from harness.bugs.api.spec import Lane, Point
from harness.rank import cuda_on_cpu
from harness.rank.replacement import from_package, replace

BOTH = (Lane.CPU, Lane.GPU)
CPU = (Lane.CPU,)
Count = Callable[[], None]


Install = Callable[[Count], None]


def shim(
    points: list[Point], name: str, releases: str, lanes: tuple[Lane, ...]
) -> Callable[[Install], Install]:
    """Declare a function as the installation of a shim; its docstring says why it is needed."""

    def declare(install: Install) -> Install:
        why = " ".join((install.__doc__ or "").split()).removesuffix(".")
        points.append(Point(name, releases, lanes, why, install))
        return install

    return declare


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


def constant(count: Count, answer: Any) -> Callable[..., Any]:
    """A function that counts its calls, and returns this answer."""

    def call(*_: Any, **__: Any) -> Any:
        count()
        return answer

    return call


def cuda(package: str, *names: str) -> Callable[[Count], None]:
    """A shim: these functions of torch do, for the code of a package, what they can on a CPU."""

    def install(count: Count) -> None:
        cuda_on_cpu.install(names, lambda _: count(), from_package(package))

    return install


def whole_checkpoints(count: Count) -> None:
    """Load a checkpoint with all its objects, as ``torch.load`` did by default before 2.6."""
    import torch

    def load(original: Any, *arguments: Any, **keywords: Any) -> Any:
        if keywords.get("weights_only") is None:
            count()
            keywords["weights_only"] = False
        return original(*arguments, **keywords)

    replace(torch, "load", load)
