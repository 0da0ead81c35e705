"""What the packages with bugs need of each other, for what no resolver can look up."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from harness.check.synonyms import NAMES, PACKAGES

NEEDS: Mapping[str, Sequence[str]] = {n: known.needs for n, known in PACKAGES.items()}
NEEDS_ONE_RELEASE: Mapping[str, Sequence[str]] = NAMES["needs_one_release"]


def unknown_needs(
    names: Iterable[str], our_packages: Collection[str], versions: Collection[str], why: str
) -> dict[str, str]:
    """Our packages that ``names`` need, also indirectly, and that ``versions`` lacks, each with the
    reason: what needs it, and ``why`` that says nothing."""
    unknown: dict[str, str] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        for need in NEEDS_ONE_RELEASE.get(name) or NEEDS.get(name, ()):
            if need not in versions and need not in unknown:
                waiting.append(need)
                if need in our_packages:
                    unknown[need] = f"{name} needs it, and {name} {why}"
    return unknown
