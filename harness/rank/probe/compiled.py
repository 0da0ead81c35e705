"""torch.compile in a rank. The server does once what each layout would do again."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

ASKED = re.compile(r"torch[._]compile|(?<!\bre)\.compile\(|dynamo")
"""Matches the source of a script that compiles."""

IN_ONE_THREAD = "TORCHINDUCTOR_COMPILE_THREADS"
"""With more threads, each rank starts interpreters, which take seconds to import torch."""


def warm_up() -> None:
    """Compile a small function, so that forked ranks inherit what the compiler imports and caches:
    this saves each rank 5 s.

    Does nothing with a torch for GPUs. There the compiler starts a thread of the driver when it is
    imported, also without a GPU, and a process with threads cannot be forked."""
    import torch

    if torch.version.cuda or torch.version.hip:
        return
    import torch._inductor.compile_fx

    with suppress(Exception):  # without a compiler, the script itself fails
        tensor = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: x * 2 + 1)(tensor).sum().backward()
        torch.compiler.reset()


names: list[str] = []
"""The names of what the script has asked to compile."""


def graphs() -> int:
    """How many graphs were compiled in this process: what a script asks to compile may never be
    called, or be what the compiler skips."""
    utils = sys.modules.get("torch._dynamo.utils")
    return int(utils.counters["stats"]["unique_graphs"]) if utils else 0


Around = Callable[[list[Any], Callable[[], Any], Sequence[Any], Mapping[str, Any]], Any]
"""Takes the modules of a function, a call of the function, and its other arguments."""


def install(eager: bool, around: Around) -> None:
    """Note what the script compiles, and let ``around`` call compiled functions, in which no hook
    runs. If ``eager``, nothing is compiled."""
    import torch

    if not hasattr(torch, "compile"):
        return
    if eager and "torch._dynamo" in sys.modules:  # a package may have compiled when it was imported
        _compile_nothing()
    original = torch.compile

    @functools.wraps(original)
    def compiled(*arguments: Any, **keywords: Any) -> Any:
        function = arguments[0] if arguments else keywords.get("model")
        if function is not None and not keywords.get("disable"):
            names.append(getattr(function, "__name__", type(function).__name__))
        if eager:
            _compile_nothing()
        output = original(*arguments, **keywords)
        alone = function is None or isinstance(function, torch.nn.Module)
        return output if alone else _around(function, output, around)

    torch.compile = compiled


def _compile_nothing() -> None:
    import torch

    if hasattr(getattr(torch, "compiler", None), "set_stance"):
        torch.compiler.set_stance("force_eager")


def _around(function: Any, compiled: Any, around: Around) -> Any:
    @functools.wraps(compiled)
    def called(*arguments: Any, **keywords: Any) -> Any:
        import torch

        values = [*arguments, *keywords.values(), *_reached(function)]
        modules = [value for value in values if isinstance(value, torch.nn.Module)]
        inputs = [one for one in arguments if not any(one is each for each in modules)]
        others = {n: one for n, one in keywords.items() if not any(one is each for each in modules)}
        return around(modules, lambda: compiled(*arguments, **keywords), inputs, others)

    return called


def _reached(function: Any) -> Iterator[Any]:
    """What a function reaches besides its arguments: its object, closure and globals."""
    owner = getattr(function, "__self__", None)
    yield owner
    yield from getattr(owner, "__dict__", {}).values()
    code, spaces = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):  # it is empty still
            yield cell.cell_contents
    for name in getattr(code, "co_names", ()):
        yield spaces.get(name)
