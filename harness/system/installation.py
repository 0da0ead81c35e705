"""How this harness was installed and started: what a user must type, and what is missing."""

from __future__ import annotations

import shlex
import sys
from importlib import metadata
from importlib.util import find_spec

from harness.system.errors import Fault, UserError
from harness.system.files import ROOT
from harness.system.text import NAME, SCRIPT

MODULE = "python -m harness"
PROGRAM = SCRIPT if NAME == SCRIPT else MODULE
"""What this user types before a command."""


def as_typed(text: str) -> str:
    """A text whose commands begin as this user must type them."""
    return text.replace(MODULE, PROGRAM)


def for_readers(text: str) -> str:
    """A text for a page, whose readers have the command ``distributed-bugs``."""
    return text.replace(MODULE, SCRIPT)


def repository() -> str:
    """The address of the project's repository, as pyproject.toml has it; "" if it is not known."""
    try:
        urls = metadata.metadata(SCRIPT).get_all("Project-URL") or []
    except metadata.PackageNotFoundError:
        urls = []
    return next((url.partition(", ")[2] for url in urls if url.startswith("Repository")), "")


def install(*packages: str) -> str:
    """The command that installs packages beside the harness; an environment of uv has no pip."""
    pip = "pip" if find_spec("pip") else "uv pip"
    return f"{shlex.quote(sys.executable)} -m {pip} install {shlex.join(packages)}"


def refuse_without_torch(feature: str, *others: str) -> None:
    """Raise Fault if torch is missing, which runs need, or one of the others. Imports none."""
    if names := [name for name in ("torch", *others) if find_spec(name) is None]:
        verb = "is" if len(names) == 1 else "are"
        text = f"{feature} needs {' and '.join(names)}, which {verb} not installed"
        raise Fault(f"{text}: {install(*names)}")


def is_checkout() -> bool:
    """Whether ROOT is a folder of the project, and not the installed package."""
    return not (ROOT / "__init__.py").exists()


def refuse_without_checkout(feature: str) -> None:
    """Raise UserError if this is an installed package: nothing is written into it."""
    if not is_checkout():
        raise UserError(f"{feature} needs a checkout of the project; this is an installed package")
