"""Why ranks of a script gave no answer."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from harness.launch.exits import Exit

FRAME = re.compile(r'File "(.+)", line (\d+) in (.+)')
"""A line of a stack, of which the innermost comes first."""


def why(ended: Exit, timeout: float, folder: Path, script: Path | None) -> str:
    """Why a launch in ``folder`` gives no answer; empty if it may give one."""
    if ended.timed_out:
        text = f"did not end within {timeout:.0f} s, and was ended"
        return "; ".join(filter(None, (text, where(folder, script))))
    if ended.failure:
        return f"rank {ended.failure['rank']}: {ended.failure['message']}"
    return f"ended with exit code {ended.code}" if ended.code else ""


def where(folder: Path, script: Path | None) -> str:
    """What the first rank that says so was doing when it was ended: the innermost line of the
    script's folder, otherwise of any file."""
    beside = str(script.resolve().parent) if script else ""
    for file in sorted(folder.glob("stack_rank_*.txt")):
        lines = FRAME.findall(file.read_text(errors="replace"))
        if any("cpp_extension" in path for path, *_ in lines):
            return "it was building a C++ extension: build it before, or give it more --timeout"
        own = [line for line in lines if beside and line[0].startswith(beside)]
        for path, number, function in (own or lines)[:1]:
            rank = file.stem.removeprefix("stack_rank_")
            return f"rank {rank} was in {function} ({Path(path).name}, line {number})"
    return ""


def log_of(folder: Path, ended: Exit) -> str:
    """The end of the log of the rank that failed, or of the agent if no rank did."""
    rank = (ended.failure or {}).get("rank", 0)
    for file in (folder / "logs" / f"rank_{rank}" / "stderr.log", folder / "torchrun.log"):
        with suppress(OSError):
            if text := file.read_text(errors="replace").strip():
                return text[-3000:]
    return ""
