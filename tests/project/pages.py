"""The commands of a page of the documentation, and what they print."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path


def commands(text: str) -> list[str]:
    """The commands of the indented blocks, each on one line, without comments, in their order."""
    blocks = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    blocks = re.sub(r" *\\\n *", " ", blocks)
    return [
        re.sub(r"\s{2,}#.*", "", line).strip()
        for line in blocks.splitlines()
        if line.startswith("    ")
    ]


def output_lines(text: str) -> Iterator[str]:
    """The lines of output in the fenced blocks, without times, which differ."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    for language, block in blocks:
        for line in block.splitlines():
            if not language and line.strip() != "...":
                yield re.sub(r"\(\d+\.\d s\)", "", line).strip()


def printed_by(
    lines: Iterable[str], folder: Path, path: str = os.environ["PATH"], **variables: str
) -> list[str]:
    """What the commands print in a folder, without times; each ends with 0 or 1."""
    ended = "code=$?; [ $code -le 1 ] || { echo the command before ended with $code; exit 1; }\n"
    script = "".join(f"{line}\n{ended}" for line in lines)
    process = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:]
    return [re.sub(r"\(\d+\.\d s\)", "", line).strip() for line in process.stdout.splitlines()]


def without_numbers(line: str) -> str:
    """A line without its numbers, which differ from machine to machine, and day to day."""
    return re.sub(r"\d+(\.\d+)?", "N", " ".join(line.split()))
