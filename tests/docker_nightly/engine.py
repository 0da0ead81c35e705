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


PATHS = os.environ.get("PATH", os.defpath).split(os.pathsep)


@dataclass(frozen=True)
class Engine:
    """A client of the engine."""

    client: str

    @property
    def version(self) -> str:
        """The client's version, such as 20.10.24."""
        text = self("--version", check=False).stdout
        return text.removeprefix("Docker version ").partition(",")[0].partition("+")[0].strip()

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
    """The engine that ``docker`` connects to; raises Unavailable without one that can build.

    It prefers the first client on the PATH that can build with BuildKit.
    """
    clients = [found for each in PATHS if (found := shutil.which("docker", path=each))]
    if not clients:
        raise Unavailable("no docker client")
    engines = [Engine(client) for client in clients]
    engine = next(filter(can_build, engines), engines[0])
    try:
        info = engine("info", seconds=20, check=False)
    except subprocess.TimeoutExpired:
        raise Unavailable("the docker engine does not respond") from None
    if info.returncode:
        raise Unavailable(f"no docker engine: {last_line(info.stdout)}")
    if not can_build(engine):
        raise Unavailable(
            f"docker {engine.version} builds only with buildx, which is not installed"
        )
    return engine


def can_build(engine: Engine) -> bool:
    """Whether a client builds with BuildKit: by itself before version 23, later with buildx."""
    itself = engine.version.split(".")[0].isdigit() and int(engine.version.split(".")[0]) < 23
    return itself or not engine("buildx", "version", check=False).returncode


def last_line(text: str) -> str:
    """The last line of a command's output."""
    return next(iter(reversed(text.strip().splitlines())), "no output")
