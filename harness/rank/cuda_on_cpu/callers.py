"""Who calls torch.cuda: a user's script, torch's compiler, or code that stops without a GPU."""

from __future__ import annotations

import ast
import functools
import linecache
import re
from collections.abc import Callable
from types import FrameType

from harness.rank.replacement import Callers, caller

PACKAGES = ("/site-packages/", "/dist-packages/", "/lib/python")
"""Parts of the paths of code that is not the script's."""
COMPILER = "/torch/_inductor/"


def from_script(frame: FrameType) -> bool:
    """Whether a frame runs the script, and not a package."""
    file = frame.f_code.co_filename
    return not (file.startswith("<") or any(part in file for part in PACKAGES))


def not_from_compiler(frame: FrameType) -> bool:
    """Whether a frame is not in torch's compiler, which must not take the CPU for a GPU."""
    return COMPILER not in frame.f_code.co_filename


def counted_from(callers: Callers, count: Callable[[str], None]) -> Callable[[str], None]:
    """A counter of the calls of these callers only."""

    def count_some(kind: str) -> None:
        if callers(caller()):
            count(kind)

    return count_some


CONDITION = re.compile(r"(^|;)\s*(assert|if|elif)\b")
LINES_OF_A_CONDITION = 4
"""How many lines of a condition are searched for the GPU."""


def demands_gpu(frame: FrameType) -> bool:
    """Whether a frame, in the script or in a library, stops without a GPU: in an ``assert``, or in
    an ``if`` that raises an error or exits. Torch itself does not count."""
    file, line = frame.f_code.co_filename, frame.f_lineno
    near = (linecache.getline(file, line - n) for n in range(LINES_OF_A_CONDITION))
    if "/torch/" in file or not any(map(CONDITION.search, near)):
        return False
    return any(first <= line <= last for first, last in _demands(file))


def from_script_or_demands_gpu(frame: FrameType) -> bool:
    """Whether a frame is in the script, or stops without a GPU."""
    return from_script(frame) or demands_gpu(frame)


@functools.lru_cache
def _demands(file: str) -> list[tuple[int, int]]:
    """The first and last lines of the conditions at which a file may stop."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return []
    spans = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and _stops(node)):
            spans.append((node.test.lineno, node.test.end_lineno or node.test.lineno))
    return spans


def _stops(node: ast.If) -> bool:
    """Whether a script stops if a condition does not hold."""
    parts = (part for part in ast.walk(node.test) if isinstance(part, ast.UnaryOp))
    negated = any(isinstance(p.op, ast.Not) and "available" in ast.unparse(p) for p in parts)
    end = (node.body if negated else node.orelse)[-1:]
    if end and isinstance(end[0], ast.Expr) and isinstance(end[0].value, ast.Call):
        return ast.unparse(end[0].value.func) in ("exit", "quit", "sys.exit", "os._exit")
    return bool(end) and isinstance(end[0], ast.Raise)
