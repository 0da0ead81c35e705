"""Nights in containers, as a caller runs them: a mounted folder, a volume, a nameless user."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.docker_nightly.engine import Engine, Failed
from tests.docker_nightly.image import NAME, certificate, settings

NOBODY_KNOWN = 12345
"""Who calls where root does: a user that the image has never heard of."""

CONTAINER = "distributed-bugs-check"
PATIENCE = 1200
"""How many seconds a night of two scenarios may take on a busy machine."""


class Night(NamedTuple):
    """A night that has ended."""

    code: int
    said: str
    seconds: float


@dataclass(frozen=True)
class Nights:
    """What the nights of one caller have in common."""

    engine: Engine
    report: Path
    volume: str

    @property
    def user(self) -> str:
        """Who calls, as ``--user`` has it."""
        found = self.report.stat()
        return f"{found.st_uid}:{found.st_gid}"

    def options(self, network: str = "host") -> list[str | Path]:
        return [
            "--init",
            "--network",
            network,
            "--user",
            self.user,
            "--volume",
            f"{self.report}:/report",
            "--volume",
            f"{self.volume}:/var/cache/distributed-bugs",
            *certificate(),
            *settings(),
        ]

    def run(self, *words: str, network: str = "host") -> Night:
        """A night, from its beginning to its end; ``network`` is host, or none."""
        begun, name = time.monotonic(), f"{CONTAINER}-{os.getpid()}"
        named = ["run", "--rm", "--name", name]
        try:
            done = self.engine(
                *named, *self.options(network), NAME, *words, check=False, seconds=PATIENCE
            )
        except subprocess.TimeoutExpired:
            self.engine("kill", name, check=False)
            raise Failed(f"it had not ended after {PATIENCE} s") from None
        return Night(done.returncode, done.stdout, time.monotonic() - begun)

    def shell(self, script: str, *, user: str | None = None) -> str:
        """What a shell in the image says, with the volume and without a network."""
        done = self.engine(
            "run",
            "--rm",
            "--network",
            "none",
            "--user",
            user or self.user,
            "--volume",
            f"{self.volume}:/var/cache/distributed-bugs",
            "--entrypoint",
            "sh",
            NAME,
            "-c",
            script,
        )
        return done.stdout.strip()

    def begin(self, *words: str) -> str:
        """A night in the background; its container's name."""
        name = f"{CONTAINER}-{os.getpid()}"
        self.engine("run", "--detach", "--name", name, *self.options(), NAME, *words)
        return name

    def inventory(self) -> set[str]:
        """What the volume holds of other people's releases: each file, when and where it was
        written."""
        found = self.shell(
            "cd /var/cache/distributed-bugs && find overlays releases uv -type f "
            "-not -name '*.lock' -not -path 'uv/simple-*' -printf '%p %i %s %T@\\n' | sort"
        )
        return set(found.splitlines())


def mounted(folder: Path) -> Path:
    """The folder of reports, the caller's own."""
    report = folder / "report"
    report.mkdir()
    if os.getuid() == 0:
        os.chown(report, NOBODY_KNOWN, NOBODY_KNOWN)
    return report
