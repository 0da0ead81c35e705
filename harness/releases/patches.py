"""Patches: unified diffs of users, and the files of packages that they change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from harness.bugs.packages import import_name, upstreams
from harness.bugs.pins import describe
from harness.system.errors import UserError
from harness.system.text import one_line

if TYPE_CHECKING:
    from unidiff.patch import PatchedFile, PatchSet

NOT_INSTALLED = {"tests", "test", "docs", "doc", "examples", "benchmarks", "scripts", "csrc"}
"""Folders at the top of a repository whose files are not in its package."""


def read(file: str) -> str:
    """The text of a patch file. Raises UserError if it is missing or is no unified diff."""
    from unidiff.errors import UnidiffParseError

    try:
        text = Path(file).expanduser().read_text(encoding="utf-8")
        if changes(text):
            return text
    except FileNotFoundError:
        raise UserError(f"patch={file}: there is no such file") from None
    except OSError as error:
        raise UserError(f"patch={file}: cannot be read: {error.strerror}") from None
    except UnicodeError as error:
        raise UserError(f"patch={file}: cannot be read: {error}") from None
    except UnidiffParseError as error:
        why = one_line(str(error))
        raise UserError(f"patch={file}: is not a whole unified diff: {why}") from None
    raise UserError(f"patch={file}: contains no change; write it with 'git diff > {file}'")


def changes(text: str) -> PatchSet:
    """The changed files of a patch. Ranks import this module, perhaps where unidiff is missing."""
    from unidiff.patch import PatchSet

    return PatchSet(text)


def packages(text: str) -> set[str]:
    """The packages that a patch may change, by the folders that its paths name: also some that do
    not exist."""
    by_module = {import_name(name).partition(".")[0]: name for name in upstreams()}
    folders = {part for changed in changes(text) for part in PurePosixPath(changed.path).parts[:-1]}
    return {by_module.get(folder, folder.replace("_", "-")) for folder in folders}


def paths(text: str, pins: Mapping[str, str]) -> set[str]:
    """The files under site-packages that a patch changes. Raises UserError if no file of it is in
    these packages."""
    if targets := set(files(text, pins)):
        return targets
    names = ", ".join(f.path for f in changes(text)[:2])
    raise UserError(f"the patch changes {names}, which {describe(pins)} does not contain")


def files(text: str, pins: Mapping[str, str]) -> dict[str, PatchedFile]:
    """The changes of a patch by their files under site-packages: those in these packages."""
    folders = {import_name(name).partition(".")[0] for name in pins}
    return {path: changed for changed in changes(text) for path in _installed(changed, folders)}


def _installed(changed: PatchedFile, folders: set[str]) -> Iterator[str]:
    """The path of a changed file under site-packages, if it is in one of these folders there."""
    parts = PurePosixPath(changed.path).parts
    if parts[0] not in NOT_INSTALLED:
        for at, part in enumerate(parts[:-1]):
            if part in folders:
                yield "/".join(parts[at:])
                return
