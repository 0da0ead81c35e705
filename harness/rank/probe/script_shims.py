"""The shims of packages that a probed script uses."""

from __future__ import annotations

from importlib import metadata

from harness.bugs.api.spec import Lane
from harness.rank import shims

SHIMMED = {
    "composer": "mosaicml",
    "deepspeed": "deepspeed",
    "lightly": "lightly",
    "megatron": "megatron-core",
    "mmengine": "mmengine",
    "open_clip": "open-clip-torch",
    "torchtitan": "torchtitan",
}
"""Maps a word in a script to the package whose shims a probe uses; others serve scenarios."""

installed: list[str] = []
"""The shims of this process."""


def install(packages: list[str], lane: str) -> None:
    """Install the shims that the installed releases of these packages need."""
    releases = {}
    for name in packages:
        try:
            releases[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    points = [p.name for p in shims.needed(releases, Lane(lane)) if p.upstream in releases]
    shims.install(points)
    installed.extend(points)
