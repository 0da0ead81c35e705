"""The harness's shims for the packages that a script uses: some cannot run on a CPU without them.

Imported by ranks, and by the process that they are forked from.
"""

from __future__ import annotations

from importlib import metadata

from harness.api.spec import Lane
from harness.overlays import shims

SHIMMED = {"deepspeed": "deepspeed", "megatron": "megatron-core"}
"""The packages whose shims a probe uses, by the word in a script; others' are about scenarios."""

installed: list[str] = []
"""The shims of this process."""


def install(packages: list[str], lane: str) -> None:
    """Install the shims that the installed releases of these packages need."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    points = [p.name for p in shims.needed(found, Lane(lane)) if p.upstream in found]
    shims.install(points)
    installed.extend(points)
