"""How we start a program for files that somebody else wrote, such as uv, pip or a Python.

It runs in a folder without files of the user, and takes neither an interpreter nor configuration
from the user's folder or an environment that is active there: a cloned repository could contain
either, and both are code. It ends with us. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

NEUTRAL = "/"
"""The working directory: it exists everywhere, and only an administrator can write to it."""

INTERPRETERS = (
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "CONDA_DEFAULT_ENV",
    "UV_PYTHON",
    "UV_PROJECT",
    "UV_PROJECT_ENVIRONMENT",
    "UV_WORKING_DIR",
    "UV_WORKING_DIRECTORY",
    "__PYVENV_LAUNCHER__",
)
"""Variables that point a program to an interpreter or a project."""

OTHERS = ("UV_LOG_CONTEXT", "UV_NO_BINARY", "UV_NO_BINARY_PACKAGE")
"""Variables that change what uv logs, or let it build what it need not."""

FILES = (
    "UV_CACHE_DIR",
    "UV_CONFIG_FILE",
    "UV_CREDENTIALS_DIR",
    "UV_PYTHON_INSTALL_DIR",
    "PIP_CONFIG_FILE",
    "PIP_CACHE_DIR",
    "PIP_CERT",
    "NETRC",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "TMPDIR",
)
"""Variables with a file or a folder: a relative one means the folder that the user is in."""

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None  # before a fork, not after it


def options(**variables: str) -> dict[str, Any]:
    """Arguments for ``subprocess`` that start a program so, with the user's variables and these."""
    user_variables = {
        name: value for name, value in os.environ.items() if name not in (*INTERPRETERS, *OTHERS)
    }
    files = {
        name: os.path.abspath(user_variables[name]) for name in FILES if user_variables.get(name)
    }
    environment = {**user_variables, **files, **variables}
    return {"cwd": NEUTRAL, "env": environment, "preexec_fn": _end_with_parent}


def _end_with_parent() -> None:
    """Request SIGKILL for this new process when the thread that started it ends."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
