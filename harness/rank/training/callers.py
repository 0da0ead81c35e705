"""Which line of a loop runs now, and what its code says of losses."""

from __future__ import annotations

import ast
import linecache
import os
import sys
import sysconfig
from collections.abc import Hashable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch

from ..events import frames

STRANGERS = tuple(
    os.path.join(folder, "")
    for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
)
"""The folders of code that calls a backward for a loop."""

INSTALLED = (*STRANGERS, *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
SITES = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))
"""What is in the paths of packages that PYTHONPATH adds to those of the interpreter."""

LOSSES = {"loss", "losses", "criterion", "objective", "entropy", "nll", "ce", "bce", "mse", "l1"}
"""Words in the names of losses."""


def place_of_caller() -> Hashable:
    """The place in the loop's code, or in that of a package, that runs now."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(STRANGERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def is_installed(file: str) -> bool:
    """Whether a file of code is that of an installed package, and not the user's own."""
    return file.startswith(INSTALLED) or any(site in file for site in SITES)


def user_frames() -> Iterator[Any]:
    """The frames of the user's code that runs now: not those of installed packages."""
    return (one for one in frames() if not is_installed(one.f_code.co_filename))


def numbers_of_losses(files: Iterable[str]) -> frozenset[float]:
    """The numbers by which the code of some files multiplies or divides a loss, as ``loss / 2``."""
    return frozenset().union(*map(_numbers_of_file, files))


@lru_cache(maxsize=64)
def _numbers_of_file(file: str) -> frozenset[float]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(_numbers_of(tree))


def _numbers_of(tree: ast.AST) -> Iterator[float]:
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
            sides = [node.left, node.right]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Mult, ast.Div)):
            sides = [node.target, node.value]
        else:
            continue
        for number, other in (sides, reversed(sides)):
            value = getattr(number, "value", None)
            if isinstance(number, ast.Constant) and isinstance(value, (int, float)):
                names = [getattr(one, "id", getattr(one, "attr", "")) for one in ast.walk(other)]
                if any(not LOSSES.isdisjoint(str(name).lower().split("_")) for name in names):
                    yield float(value)
