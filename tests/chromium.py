"""A real Chromium for tests: the one that is installed, or Debian's where that can be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What it may be called. Playwright's own browsers come from a place that not all can reach."""

INSTALL = "apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends chromium"


class NoBrowser(Exception):
    """There is none, and none can be installed; the message says why."""


@cache
def executable() -> str:
    """The path of a Chromium, which is installed if need be; raises NoBrowser."""
    found = _installed()
    if found:
        return found
    if os.geteuid() != 0:
        raise NoBrowser("no Chromium, and only root can install one: apt-get install chromium")
    if not shutil.which("apt-get"):
        raise NoBrowser("no Chromium, and no apt-get to install one")
    for command in ("apt-get -q update", INSTALL):
        done = subprocess.run(
            command.split(), capture_output=True, text=True,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )  # fmt: skip
        if done.returncode and command == INSTALL:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NoBrowser(f"no Chromium, and it cannot be installed: {last}")
    if not (found := _installed()):
        raise NoBrowser("chromium was installed, and is not on the path")
    return found


def _installed() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)
