"""An environment: the releases of some packages, and where they were read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.upstream import interpreter


@dataclass(frozen=True)
class Installed:
    version: str
    origin: str = ""


@dataclass(frozen=True)
class Environment:
    packages: Mapping[str, Installed]
    where: str
    complete: bool
    python: Path | None


def of_this_interpreter(names: Iterable[str]) -> Environment:
    return _of(interpreter.this(names))


def of_interpreter(python: Path, names: Iterable[str]) -> Environment:
    return _of(interpreter.other(python, names))


def _of(found: interpreter.Interpreter) -> Environment:
    return Environment(
        {
            n: Installed(
                d.version,
                "an editable install" if d.origin.get("dir_info", {}).get("editable") else "",
            )
            for n, d in found.packages.items()
        },
        f"{found.executable} (Python {found.version})",
        True,
        Path(found.executable),
    )


def of_files(files: Sequence[str], names: Iterable[str]) -> Environment:
    from harness.upstream import requirements

    found = requirements.required(Path(files[0]), names)
    return Environment({n: Installed(v) for n, v in found.items()}, files[0], False, None)
