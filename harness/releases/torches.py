"""The torch of an overlay: a copy of its Python files, with links to its libraries.

torch's wheels have up to 5 GB, nearly all of them libraries. A scenario of torch itself gets an
overlay with torch's Python files (48 MB) and links to its folders of libraries. So a defect edits a
file of the overlay, as for any other package, and the torch that is installed is never written to.
A rank imports torch from the overlay, which its list of loaded files proves.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from harness.bugs.pins import TORCH, Torch, as_pinned, here
from harness.releases import uv
from harness.system.errors import Inconclusive, Unsupported
from harness.system.files import folder_whole, locked, sha256, writing

LINKED = ("bin", "include", "lib", "share", "test")
"""Folders of torch without Python that a rank imports; an overlay links to them."""

INDEX = "TORCH_INDEX"
"""The environment variable with the package index that further releases of torch come from."""

INSTALLED = "installed"
"""As a pin of torch: the release that is installed."""


def installed() -> str | None:
    """The release of torch in this environment, without its build: 2.13.0 for 2.13.0+cpu."""
    home = _home()
    distribution = home and _distribution(home)
    return as_pinned(TORCH, distribution.version) if distribution else None


def at_hand(release: str, cache: Path) -> Torch:
    """The files of a release: those that are installed, or a copy in the cache.

    With ``TORCH_INDEX`` a release is installed into the cache. Otherwise raises Unsupported if it
    is not at hand.
    """
    home = _home()
    if home and installed() == release:
        return _torch(home)
    python, _ = here()
    folder = cache / "torches" / f"{release}-{python}"
    if not folder.is_dir():
        if not os.environ.get(INDEX):
            raise Unsupported(
                f"torch {release} is not installed, but {installed() or 'none'}: install it, or "
                f"name an index with {INDEX} (docs/torch.md)"
            )
        _fetch(release, folder)
    return _torch(folder)


def _home() -> Path | None:
    spec = find_spec(TORCH)
    return Path(spec.origin).parent.parent if spec and spec.origin else None


def _distribution(home: Path) -> Distribution | None:
    return next(iter(distributions(name=TORCH, path=[str(home)])), None)


def _torch(home: Path) -> Torch:
    record = _metadata(home) / "RECORD"
    if not record.is_file():
        raise Unsupported(f"torch in {home} has no RECORD of its files: install it from a wheel")
    return Torch(str(home), sha256(record))


def _metadata(home: Path) -> Path:
    distribution = _distribution(home)
    if distribution is None:
        raise Unsupported(f"{home} has no metadata of torch: install it from a wheel")
    return home / f"{TORCH}-{distribution.version}.dist-info"


def _fetch(release: str, folder: Path) -> None:
    with writing(folder.parent, "HARNESS_CACHE"), locked(folder.with_name(f"{folder.name}.lock")):
        if folder.is_dir():
            return
        with folder_whole(folder) as aside:
            words = ["pip", "install", f"{TORCH}=={release}", "--no-cache", "--target", str(aside)]
            words += ["--default-index", os.environ[INDEX], "--only-binary", ":all:"]
            uv.run(words, pins={TORCH: release})


def copy(torch: Torch, site: Path) -> None:
    """Copy the Python files of a torch into ``site``, and link to its libraries.

    Raises Inconclusive if a file is not as its wheel has it.
    """
    home = Path(torch.folder)
    for name, digest in _files(home):
        target = site / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home / name, target)
        if digest and sha256(target) != digest:
            raise Inconclusive(
                f"{home / name} is not as the wheel of torch has it: install torch again"
            )
    for folder in LINKED:
        if (home / TORCH / folder).is_dir():
            (site / TORCH / folder).symlink_to(home / TORCH / folder)


def _files(home: Path) -> Iterator[tuple[str, str]]:
    """The files of torch's wheel that an overlay copies, each with its SHA-256; empty if the wheel
    has none."""
    linked = tuple(f"{TORCH}/{folder}/" for folder in LINKED)
    with (_metadata(home) / "RECORD").open(newline="", encoding="utf-8") as file:
        for name, digest, _ in csv.reader(file):
            if name.startswith(("..", *linked)) or name.endswith(".pyc") or os.path.isabs(name):
                continue
            method, _, encoded = digest.partition("=")
            is_sha256 = method == hashlib.sha256().name
            yield name, base64.urlsafe_b64decode(f"{encoded}==").hex() if is_sha256 else ""
