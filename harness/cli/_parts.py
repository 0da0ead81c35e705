"""Divide scenarios into parts whose bundles each fit a size, with overlays that share files.

How well an overlay compresses is known only afterwards, so each finished part corrects the estimate
for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from harness.releases.archive import is_bytecode
from harness.releases.overlay import Overlay
from harness.system.errors import UserError

Contents = Mapping[str, int]
"""The bytes of each file, by the hash of its content."""

RATIO = 0.1
"""The packed size of overlays for each byte of different files, before the first part is made."""
SITE_BYTES = 5_000_000
"""The size of the rest of a bundle: the harness and what it needs."""


def contents(overlays: Iterable[Overlay]) -> Contents:
    """The different files of overlays."""
    return {
        entry.sha256: (overlay.site / path).stat().st_size
        for overlay in overlays
        for path, entry in (overlay.files or {}).items()
        if not is_bytecode(path)
    }


def divide(
    scenarios: Mapping[str, Contents],
    limit: int,
    pack: Callable[[Sequence[str]], int],
    leave_out: Callable[[str, UserError], None],
) -> Iterator[tuple[str, ...]]:
    """Pack the scenarios in parts of at most ``limit`` bytes; yields the scenarios of each.

    ``pack`` makes the bundle of some scenarios and returns its bytes. It is called again, with
    fewer, if these are too many. ``leave_out`` gets each scenario that is too large alone; it may
    raise the error.
    """
    waiting, ratio = dict(scenarios), RATIO
    while waiting:
        part = _next_part(waiting, (limit - SITE_BYTES) / ratio)
        size, packed_bytes = _bytes(waiting, part), pack(part)
        if size:
            ratio = max(packed_bytes - SITE_BYTES, 1) / size
        if packed_bytes <= limit:
            for name in part:
                del waiting[name]
            yield part
        elif len(part) == 1:
            del waiting[part[0]]
            needed = f"{part[0]} alone needs {packed_bytes / 1e6:.0f} MB"
            leave_out(part[0], UserError(f"{needed}: --parts must be larger"))


def _bytes(scenarios: Mapping[str, Contents], part: Iterable[str]) -> int:
    together: dict[str, int] = {}
    for name in part:
        together.update(scenarios[name])
    return sum(together.values())


def _next_part(scenarios: Mapping[str, Contents], most: float) -> tuple[str, ...]:
    """The largest scenario, and those that add the fewest bytes to it while they fit."""
    largest = max(scenarios, key=lambda name: sum(scenarios[name].values()))
    together, part = dict(scenarios[largest]), [largest]
    added = {name: _without(scenarios[name], together) for name in scenarios if name != largest}
    while added:
        name = min(added, key=lambda name: sum(added[name].values()))
        news = added.pop(name)
        if sum(together.values()) + sum(news.values()) > most:
            break
        together.update(news)
        part.append(name)
        added = {other: _without(files, news) for other, files in added.items()}
    return tuple(part)


def _without(files: Contents, others: Contents) -> Contents:
    return {digest: size for digest, size in files.items() if digest not in others}
