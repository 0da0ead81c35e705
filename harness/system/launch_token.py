"""The token of a launch: a variable in the environment of all its processes.

``processes`` finds them by it. A server in the interpreter of a user sets it, so this needs no
package.
"""

from __future__ import annotations

import ctypes
import os
import uuid

TOKEN = "HARNESS_TRIAL"
"""The environment variable with the token of a launch."""


def new_token() -> str:
    """A token that no other launch has."""
    return uuid.uuid4().hex


NO_TOKEN = "0" * len(new_token())
"""The token of a process that belongs to no launch yet. It has the length of a token."""


def set_token(token: str) -> None:
    """Set the token of this process, which was started with NO_TOKEN, and of its children.

    ``/proc/PID/environ`` shows the memory that a process was started with, not variables that it
    sets later. So the token is written over that memory.
    """
    if os.environ.get(TOKEN) != NO_TOKEN:
        raise ValueError(f"{TOKEN} is already set")
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    ctypes.memmove(getenv(TOKEN.encode()), token.encode(), len(NO_TOKEN))
    os.environ[TOKEN] = token
