"""The manifest of an overlay: its files as they were built. Ranks compare theirs with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.system.errors import Inconclusive

MANIFEST = "overlay.json"

INSTALLED = "installed"
"""The key of the user's environment, which is not an overlay and has no manifest."""


class DamagedOverlay(Inconclusive):
    """An overlay in the cache has changed since it was built."""


class BuiltFile(NamedTuple):
    """A file as it was built."""

    size: int
    """In bytes."""
    sha256: str


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of the overlay in a folder; ``files`` maps each path to a BuiltFile.

    Raises DamagedOverlay if it is missing or not valid.
    """
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files = manifest["files"].items()
        manifest["files"] = {path: BuiltFile(size, content) for path, (size, content) in files}
    except (OSError, ValueError, TypeError, KeyError):
        raise DamagedOverlay(
            f"overlay {folder.name} is damaged: it has no valid {MANIFEST}; delete it with "
            f"'python -m harness clean {folder.name}'"
        ) from None
    return manifest


def changed_files(site: Path, hashes: Mapping[str, str]) -> list[str]:
    """The files of an overlay that are not as they were built.

    ``site`` is its site-packages; ``hashes`` has the SHA-256 of each file by its path there.
    """
    built = read_manifest(site.parent)["files"]
    return [
        path
        for path, sha in sorted(hashes.items())
        if path not in built or built[path].sha256 != sha
    ]
