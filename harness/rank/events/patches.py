"""Replaces methods and functions by others that call them, and puts the first ones back."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import Any

Around = Callable[..., Any]
"""Is called instead of a method or function: with that, and then with the arguments."""

MISSING = object()


class Patches:
    """Replacements that belong together. What is replaced already is not replaced again."""

    def __init__(self) -> None:
        self._undo: dict[Any, Callable[[], None]] = {}

    def once(self, key: Any, install: Callable[[], Callable[[], None]]) -> None:
        """Install something of this key, unless it is installed. ``install`` returns a function
        that undoes it."""
        if key not in self._undo:
            self._undo[key] = install()

    def wrap(self, owner: Any, name: str, around: Around, eager: bool = False) -> None:
        """Replace a method of a class or of an object, or a function of a module.

        If ``eager``, torch.compile sees the original.
        """

        def install() -> Callable[[], None]:
            before = vars(owner).get(name, MISSING)
            wrapped = _wrapped(getattr(owner, name), around, eager)
            setattr(owner, name, wrapped)

            def undo() -> None:
                if vars(owner).get(name) is not wrapped:
                    return  # something else has replaced it since, and calls ours
                if before is MISSING:
                    delattr(owner, name)
                else:
                    setattr(owner, name, before)

            return undo

        self.once((id(owner), name), install)

    def wrap_everywhere(self, function: Any, around: Around, eager: bool = False) -> None:
        """Replace a function in all modules that have it, also under another name."""
        wrapped = _wrapped(function, around, eager)

        def install() -> Callable[[], None]:
            replace_everywhere(function, lambda _: wrapped)
            return lambda: replace_everywhere(wrapped, lambda _: function)

        self.once((function.__module__, function.__name__), install)

    def undo(self) -> None:
        """Put everything back."""
        for undo in reversed(list(self._undo.values())):
            undo()
        self._undo.clear()


def _wrapped(original: Any, around: Around, eager: bool) -> Any:
    if not eager:

        @functools.wraps(original)
        def wrapped(*arguments: Any, **keywords: Any) -> Any:
            return around(original, *arguments, **keywords)

        return wrapped

    compiling = compiler_question()

    @functools.wraps(original)
    def eagerly(*arguments: Any, **keywords: Any) -> Any:
        if compiling():
            return original(*arguments, **keywords)
        return around(original, *arguments, **keywords)

    if hasattr(original, "__code__"):  # torch.compile can trace it without the wrapper
        vars(eagerly).update(FOR_COMPILERS, __original_fn=original)
    return eagerly


FOR_COMPILERS = {"__script_if_tracing_wrapper": True}
"""torch.jit.script, and torch.compile, too, compile the ``__original_fn`` of such a function."""


def compiler_question() -> Callable[[], bool]:
    """A function that returns whether torch.compile traces its caller, or runs it with tensors
    without values, as torch 2.11 does with a wrapped function of its own. Hooks must do nothing
    then: they would be compiled, break the graph, or ask for values."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    def is_compiling() -> bool:
        return torch.compiler.is_compiling() or any(
            isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack()
        )

    return is_compiling


def replace_everywhere(function: Any, wrap: Callable[[Any], Any]) -> None:
    """Replace a function by ``wrap(function)`` in all modules that have it, also under another
    name: ``from safetensors.torch import save_file as safe_save_file``."""
    wrapped, name = wrap(function), function.__name__
    aliases = _aliases.of(function)
    for space, alias in [*((space, name) for space in _spaces()), *aliases]:
        if space.get(alias) is function:
            space[alias] = wrapped
    _aliases.note(wrapped, aliases)


def _spaces() -> list[dict[str, Any]]:
    """The namespaces of all modules."""
    return [getattr(module, "__dict__", {}) for module in list(sys.modules.values())]


class _Aliases:
    """Where modules have a function under another name than its own. A search takes some 0.05 s, so
    it is made only if modules were imported since."""

    def __init__(self) -> None:
        self._module_count = 0
        self._places: dict[int, list[tuple[dict[str, Any], str]]] = {}

    def of(self, function: Any) -> list[tuple[dict[str, Any], str]]:
        """The namespaces that have a function under another name, and that name."""
        if self._module_count != len(sys.modules):
            self._module_count = len(sys.modules)
            self._places.clear()
            for space in _spaces():
                for name, value in list(space.items()):
                    if type(value) in FUNCTIONS and value.__name__ != name:
                        self._places.setdefault(id(value), []).append((space, name))
        return self._places.get(id(function), [])

    def note(self, function: Any, places: list[tuple[dict[str, Any], str]]) -> None:
        """Note that a function has replaced the one that these places had."""
        if places:
            self._places[id(function)] = places


FUNCTIONS = (FunctionType, BuiltinFunctionType)

_aliases = _Aliases()


def frames() -> Iterator[Any]:
    """The frames of all functions that led here."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def calling_frame() -> Any:
    """The frame that called the wrapped function whose ``Around`` calls this."""
    frame: Any = sys._getframe(1)
    while frame.f_code.co_filename != _wrapped.__code__.co_filename:
        frame = frame.f_back
    return frame.f_back
