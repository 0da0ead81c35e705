"""The image to build upon: pulled, or made from Debian's packages where none can be pulled."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.docker_nightly.engine import Engine, Unavailable, last_line

NAME = "distributed-bugs:base"
RELEASE = "bookworm"
"""Debian 12, whose Python is 3.11."""
PACKAGES = ("python3", "python3-venv", "git", "ca-certificates")


def at_hand(docker: Engine, base: str, folder: Path) -> str:
    """The name of an image that is here: ``base``, or one that debootstrap makes in ``folder``.

    Raises Unavailable if the image can neither be pulled nor made.
    """
    if not docker("image", "inspect", base, check=False).returncode:
        return base
    pulled = docker("pull", "--quiet", base, check=False)
    if not pulled.returncode:
        return base
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        raise Unavailable(
            f"{base} cannot be pulled ({last_line(pulled.stdout)}); root makes another base with "
            "debootstrap, where that is installed"
        )
    return made(docker, folder / "base")


def made(docker: Engine, folder: Path) -> str:
    """Make a Debian with Python, and import it; its name."""
    included = f"--include={','.join(PACKAGES)}"
    subprocess.run(
        ["debootstrap", "--variant=minbase", included, RELEASE, folder],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with subprocess.Popen(
        ["tar", "--one-file-system", "-C", folder, "-c", "."], stdout=subprocess.PIPE
    ) as packed:
        subprocess.run(
            [docker.client, "import", "-", NAME],
            stdin=packed.stdout,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=600,
        )
    return NAME
