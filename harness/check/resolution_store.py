"""What requirements install, kept until the end of the day (UTC): nothing is resolved twice.

An answer is kept in the cache under a digest of all that it depends on: the address of an index may
contain a password.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.markers import default_environment

from harness.check.installed import Installed, as_fields, of_fields
from harness.releases import index
from harness.system import store
from harness.system.documents import as_list, as_table, as_text, as_texts
from harness.system.errors import HarnessError
from harness.system.machine import cache_folder, release_of


@dataclass(frozen=True)
class Resolution:
    """What requirements install, as far as that could be found out."""

    packages: Mapping[str, Installed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What the user should know of it, a line each."""
    is_repeatable: bool = False
    """Whether the same question had the same answer today: everything was found."""
    python: str = ""
    """The Python that the releases are for, ``3.8``; empty for ours."""


def read(inputs: Any) -> Resolution | None:
    """The resolution of today that is kept under these inputs; None without one."""
    with suppress(HarnessError, OSError):  # check needs neither a cache nor uv's configuration
        resolution = store.read(_parsed, cache_folder(), _key(inputs))
        return resolution if resolution and resolution.is_repeatable else None
    return None


def write(inputs: Any, resolution: Resolution) -> None:
    """Keep a resolution until the end of the day, if it can be repeated."""
    if resolution.is_repeatable:
        packages = {name: as_fields(package) for name, package in resolution.packages.items()}
        content = {"day": _today(), "packages": packages, "notes": resolution.notes}
        content["python"] = resolution.python
        with suppress(HarnessError, OSError):
            store.write(cache_folder(), _key(inputs), content)


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())


def _key(inputs: Any) -> dict[str, str]:
    """A digest of the inputs and of what else decides the answer: uv, this Python, the platform,
    and the index with its configuration. The day is not among it, so that a file of yesterday is
    overwritten."""
    code = ("packages.toml", "problem.py", "resolver.py", "solver.py", "walk.py")
    files = [*map(Path(__file__).with_name, code), *filter(None, [index.uv_configuration()])]
    facts = [
        *(inputs, release_of("uv"), release_of("distributed-bugs"), dict(default_environment())),
        *(platform.python_build(), platform.libc_ver(), index.configured()),
        sorted((name, value) for name, value in os.environ.items() if name.startswith("UV_")),
        [file.read_text(encoding="utf-8", errors="replace") for file in files],
    ]
    text = json.dumps(facts, sort_keys=True)
    return {"resolution": hashlib.sha256(text.encode()).hexdigest()}


def _parsed(content: Any) -> Resolution:
    """Parse what ``write`` wrote. An answer of another day is not repeatable."""
    table = as_table(content, "it")
    packages = {
        name: of_fields(as_table(package, name))
        for name, package in as_table(table["packages"], "packages").items()
    }
    notes = tuple(as_texts(as_list(table["notes"], "notes"), "notes"))
    python = as_text(table["python"], "python")
    return Resolution(packages, notes, table["day"] == _today(), python)
