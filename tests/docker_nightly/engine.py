"""The Docker engine that the tests use."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


class Unavailable(Exception):
    """Something that the tests need is missing; one line says what."""


class Failed(Exception):
    """A check failed; one line says why."""


def expect(true: object, otherwise: str) -> None:
    if not true:
        raise Failed(otherwise)


@dataclass(frozen=True)
class Engine:
    """A client of the engine."""

    client: str

    def __call__(
        self, *words: str | Path, seconds: float = 1200, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a command; stdout and stderr are one text. Raises CalledProcessError if it fails."""
        return subprocess.run(
            [self.client, *words],
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=check,
        )


def find() -> Engine:
    """The engine that ``docker`` connects to; raises Unavailable without one."""
    client = shutil.which("docker")
    if client is None:
        raise Unavailable("no docker client")
    engine = Engine(client)
    try:
        info = engine("info", seconds=20, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable("the docker engine does not respond") from None
    if info.returncode:
        raise Unavailable(f"no docker engine: {last_line(info.stdout)}")
    if engine("buildx", "version", check=False).returncode:
        raise Unavailable("docker has no buildx, which builds with BuildKit")
    return engine


def last_line(text: str) -> str:
    """The last line of a command's output."""
    return next(iter(reversed(text.strip().splitlines())), "no output")
