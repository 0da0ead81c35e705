"""Files of JSON lines that are only appended: one value on each line. Standard library only.

A writer holds a lock while it appends. A line that lost its end when the power failed has no line
break: readers leave it out, and the next writer removes it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.system.text import warn_once


def append(path: Path, values: Iterable[Any]) -> None:
    """Append a line for each JSON value: all of them or, if that fails, none.

    Raises OSError if they cannot be written; the file is then as it was.
    """
    text = "".join(f"{json.dumps(value, separators=(',', ':'))}\n" for value in values)
    if not text:
        return
    with path.open("ab", buffering=0) as file:  # a buffer would be written again on closing
        fcntl.flock(file, fcntl.LOCK_EX)
        size = path.read_bytes().rfind(b"\n") + 1  # up to the end of the last whole line
        content = memoryview(text.encode())
        try:
            file.truncate(size)
            while content:
                content = content[file.write(content) :]
            os.fsync(file.fileno())
        except BaseException:
            os.ftruncate(file.fileno(), size)
            raise


def read(path: Path) -> list[Any]:
    """The values of all whole lines; empty if there is no file.

    Raises ValueError for a whole line that is not JSON, and OSError.
    """
    if not path.exists():
        return []
    values, end = read_from(path, 0)
    if end < path.stat().st_size:
        warn_once(f"{path}: its last line is cut off, and is left out")
    return values


def read_from(path: Path, start: int) -> tuple[list[Any], int]:
    """The values of the whole lines that begin at a byte, and the byte at which they end."""
    with path.open("rb") as file:
        file.seek(start)
        *lines, tail = file.read().split(b"\n")
        values = json.loads(b"[%s]" % b",".join(lines))  # much quicker than each by itself
        if len(values) != len(lines):
            raise ValueError("a line has several values")
        return values, file.tell() - len(tail)
