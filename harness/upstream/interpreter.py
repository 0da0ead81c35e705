"""A Python interpreter and what is installed for it: this one, or another one that is asked.

The other one is asked by a process that runs ``QUESTION``, so it needs none of our packages.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from harness.errors import Inconclusive, UserError

MARK = "distributed-bugs:"
"""Begins the line with the answer: a sitecustomize may print lines of its own."""
LIMIT = 10
"""Seconds that another interpreter has to answer."""


@dataclass(frozen=True)
class Distribution:
    """An installed package."""

    version: str
    folder: str
    """Where it is installed."""
    origin: Mapping[str, Any]
    """The content of ``direct_url.json``; empty for a package from an index."""


@dataclass(frozen=True)
class Interpreter:
    """A Python, with the packages that were asked for and are installed."""

    executable: str
    version: str
    """Like ``3.11.7``."""
    site: str
    """Its site-packages."""
    packages: Mapping[str, Distribution]


def this(names: Iterable[str]) -> Interpreter:
    """The interpreter that runs this command."""
    found = answer(list(names))
    packages = {name: Distribution(*parts) for name, parts in found["packages"].items()}
    return Interpreter(sys.executable, found["version"], found["site"], packages)


def of(python: Path, names: Iterable[str]) -> Interpreter:
    """The interpreter ``python``, which may be this one."""
    return this(names) if str(python) == sys.executable else other(python, names)


def answer(names: list[str]) -> dict[str, Any]:
    """What an interpreter says of itself. Standard library only: ``QUESTION`` is its source."""
    packages = {}
    for name in names:
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        origin = json.loads(found.read_text("direct_url.json") or "{}")
        packages[name] = [found.version, str(found.locate_file("")), origin]
    return {
        "version": sys.version.split()[0],
        "site": sysconfig.get_path("purelib"),
        "packages": packages,
    }


def other(python: Path, names: Iterable[str]) -> Interpreter:
    """Another interpreter, or that of a virtual environment's folder.

    Raises UserError if there is none, and Inconclusive if it does not answer within LIMIT seconds.
    """
    executable = python / "bin" / "python" if python.is_dir() else python
    if not executable.is_file() or not os.access(executable, os.X_OK):
        raise UserError(f"no Python interpreter {executable}: name one, or a virtual environment")
    found = json.loads(_asked(executable, json.dumps(list(names))))
    packages = {name: Distribution(*parts) for name, parts in found["packages"].items()}
    return Interpreter(str(executable.absolute()), found["version"], found["site"], packages)


def _asked(executable: Path, names: str) -> str:
    """The answer of another interpreter, as JSON."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    command = [str(executable.absolute()), "-c", QUESTION, names]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LIMIT, cwd="/", env=environment
        )
    except subprocess.TimeoutExpired:
        raise Inconclusive(f"{executable} did not answer within {LIMIT} s") from None
    except OSError as error:
        raise UserError(f"{executable} cannot be started: {error.strerror}") from None
    for line in done.stdout.splitlines():
        if line.startswith(MARK):
            return line.removeprefix(MARK)
    why = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    raise Inconclusive(f"{executable} did not say what is installed: {why}")


QUESTION = f"""\
from __future__ import annotations
import json, sys, sysconfig
from importlib import metadata
from typing import Any
{inspect.getsource(answer)}
print("\\n{MARK}" + json.dumps(answer(json.loads(sys.argv[1]))))
"""
"""What another interpreter runs; works from Python 3.8 on."""
