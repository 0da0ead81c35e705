"""Nightlies in containers: with a mounted folder, a volume, and a user that the image lacks."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.docker_nightly.engine import Engine, Failed
from tests.docker_nightly.image import NAME, certificate, settings

UNKNOWN_USER = 12345
"""The user of the nightlies if root runs the tests."""

LIMIT = 1200
"""How many seconds a nightly of two scenarios may take on a busy machine."""


class Ended(NamedTuple):
    """A nightly that has ended."""

    code: int
    output: str
    seconds: float


@dataclass(frozen=True)
class Nightlies:
    """What the nightlies of one caller have in common."""

    engine: Engine
    report: Path
    volume: str

    @property
    def user(self) -> str:
        """The owner of the report folder, as for ``--user``."""
        owner = self.report.stat()
        return f"{owner.st_uid}:{owner.st_gid}"

    @property
    def name(self) -> str:
        """The name of the container."""
        return f"distributed-bugs-check-{os.getpid()}"

    def options(self, network: str = "host") -> list[str | Path]:
        return [
            *("--name", self.name, "--init", "--network", network, "--user", self.user),
            *("--volume", f"{self.report}:/report"),
            *("--volume", f"{self.volume}:/var/cache/distributed-bugs"),
            *certificate(),
            *settings(),
        ]

    def run(self, *words: str, network: str = "host") -> Ended:
        """Run a nightly; ``network`` is host or none."""
        started, command = time.monotonic(), ["run", "--rm", *self.options(network), NAME, *words]
        try:
            process = self.engine(*command, check=False, seconds=LIMIT)
        except subprocess.TimeoutExpired:
            self.engine("kill", self.name, check=False)
            raise Failed(f"it had not ended after {LIMIT} s") from None
        return Ended(process.returncode, process.stdout, time.monotonic() - started)

    def start(self, *words: str) -> None:
        """Start a nightly in the background."""
        self.engine("run", "--detach", *self.options(), NAME, *words)

    def shell(self, script: str, *, user: str | None = None) -> str:
        """The output of a shell in the image, with the volume and without a network."""
        process = self.engine(
            *("run", "--rm", "--network", "none", "--user", user or self.user),
            *("--volume", f"{self.volume}:/var/cache/distributed-bugs"),
            *("--entrypoint", "sh", NAME, "-c", script),
        )
        return process.stdout.strip()

    def inventory(self) -> set[str]:
        """The files of upstream releases in the volume, with inode, size and time."""
        listing = self.shell(
            "cd /var/cache/distributed-bugs && find overlays releases uv -type f "
            "-not -name '*.lock' -not -path 'uv/simple-*' -printf '%p %i %s %T@\\n' | sort"
        )
        return set(listing.splitlines())


def report_folder(parent: Path) -> Path:
    """A new folder for the reports, which belongs to the user of the nightlies."""
    report = parent / "report"
    report.mkdir()
    if os.getuid() == 0:
        os.chown(report, UNKNOWN_USER, UNKNOWN_USER)
    return report
