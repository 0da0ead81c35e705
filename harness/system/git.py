"""Asks git about a repository. It writes nothing to a checkout, and asks no questions."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def environment() -> dict[str, str]:
    """The environment in which git runs: ``git status`` would write to the index otherwise."""
    return dict(os.environ, GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0")


def run(repository: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run git in a repository, with ``text`` as its input."""
    return subprocess.run(
        ["git", "-C", str(repository), *arguments],
        input=text,
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
