"""The releases that models are asked with: of this Python, or of an overlay."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from harness.bugs.pins import Stack, describe, here
from harness.rank.models.heads import SUBJECT
from harness.releases import index, overlay, releases
from harness.system.errors import UserError, unknown
from harness.system.machine import cache_folder, release_of

COMPANIONS = ("accelerate", "deepspeed", "peft")
PACKAGES = (SUBJECT, *COMPANIONS)


@dataclass(frozen=True)
class Releases:
    """Where the packages are, and which releases they are."""

    site: Path
    """The site-packages that contains transformers."""
    packages: Mapping[str, str]
    """The release of each of PACKAGES that is there."""
    overlay: str = ""
    """The key of an overlay; empty for the packages of this Python."""
    patched: bool = False

    def __str__(self) -> str:
        return describe(self.packages) + (", patched" if self.patched else "")


def is_installed() -> bool:
    """Whether this Python has transformers. Does not import it."""
    return find_spec(SUBJECT) is not None


@contextmanager
def borrow(pins: Mapping[str, str], patches: Sequence[str] = ()) -> Iterator[Releases]:
    """An overlay of the pinned releases, with these patches. Without pins, the releases of this
    Python; an overlay of the newest if it has no transformers."""
    if unknown_pin := next((name for name in pins if name not in PACKAGES), None):
        raise UserError(unknown("pin of models", unknown_pin, PACKAGES))
    if not pins and (spec := find_spec(SUBJECT)) and spec.origin:
        pins = {name: version for name in PACKAGES if (version := release_of(name))}
        if not patches:
            yield Releases(Path(spec.origin).parent.parent, pins)
            return
    stack, cache = replace(_stack(pins), patches=tuple(patches)), cache_folder()
    with overlay.awaited(stack, (), cache) as borrowed_overlay:
        yield Releases(borrowed_overlay.site, stack.packages, borrowed_overlay.key, bool(patches))


def newest() -> dict[str, str]:
    """The newest release of each package today, as pins."""
    return {name: index.newest(name, time.strftime("%Y-%m-%d")) for name in PACKAGES}


def _stack(pins: Mapping[str, str]) -> Stack:
    """All packages: the pinned ones, and otherwise the newest on the day of transformers."""
    chosen = {}
    for name, version in pins.items():
        if not releases.is_one(version):
            raise UserError(f"{name}={version}: models takes one release, such as {name}=5.10.1")
        (chosen[name],) = releases.chosen(name, version)
    day = time.strftime("%Y-%m-%d")
    if SUBJECT in chosen:
        python, _ = here()
        day = releases.settled(releases.released(SUBJECT, chosen[SUBJECT], cache_folder()), python)
    full = {name: chosen.get(name) or index.newest(name, day) for name in PACKAGES}
    return Stack(full, day, *here())
