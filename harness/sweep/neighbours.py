"""The status of a release that was not tested, from the tested releases around it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.version import Version

from harness.sweep.cell import Status


@dataclass(frozen=True)
class Inferred:
    """A status, and the releases that it is known from."""

    status: Status
    older: str
    newer: str
    """The same as ``older`` if the release itself was tested."""


def infer(tested: Iterable[tuple[str, Status]], version: str) -> Inferred | None:
    """The status of a release: its own, otherwise that of both neighbours if they agree.

    ``tested`` has versions with their statuses; only certain ones count. None if there is no older
    or no newer release, or if the neighbours, or several results of one release, differ.
    """
    certain: dict[Version, set[Status]] = {}
    for each, status in tested:
        if status.certain:
            certain.setdefault(Version(each), set()).add(status)
    here = Version(version)
    older = max((v for v in certain if v <= here), default=None)
    newer = min((v for v in certain if v >= here), default=None)
    if older is None or newer is None or len(certain[older] | certain[newer]) > 1:
        return None
    (status,) = certain[older]
    return Inferred(status, str(older), str(newer))
