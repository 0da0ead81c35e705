"""Edits of the packages in an overlay: defects, and patches.

A defect edits upstream's syntax tree and must match exactly once. A patch is a user's unified diff.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from harness.bugs.api.spec import Defect
from harness.bugs.packages import import_name
from harness.bugs.pins import Distribution, describe
from harness.releases import patches
from harness.system.errors import HarnessError, Inconclusive, Unsupported, UserError

if TYPE_CHECKING:
    import libcst as cst
    from unidiff.patch import PatchedFile


class DefectError(Inconclusive):
    """An edit does not match exactly once: it was not written for the code of this release."""


def apply_defect(defect: Defect, site: Path, release: str) -> str:
    """Put a defect into the tree under ``site``; returns the change as a unified diff.

    ``release`` is for messages: ``deepspeed==0.19.8``. The file is replaced, not overwritten, so
    that other hard links to it keep the original text.
    """
    path = site / defect.file
    if not path.is_file():
        raise _misfit(defect, f"{defect.name}: {release} has no file {defect.file}")
    before = path.read_text(encoding="utf-8")
    after = edited(defect, before, release)
    path.unlink()
    path.write_text(after, encoding="utf-8")
    remove_bytecode(path)
    return diff(defect.file, before, after)


def remove_bytecode(source: Path) -> None:
    """Remove the bytecode of a source that has changed. Compiling would write through the link to
    the bytecode of other overlays."""
    for compiled in source.parent.glob(f"__pycache__/{source.stem}.*.pyc"):
        compiled.unlink()


def edited(defect: Defect, source: str, release: str) -> str:
    """The source with the defect in it.

    Raises DefectError unless it matches exactly once; Unsupported if the defect says which releases
    it fits.
    """
    import libcst as cst

    where = f"{defect.name}: {release}, {defect.file}"
    module = cst.parse_module(source)
    scopes = _scopes(module, defect.scope.split("."))
    if len(scopes) != 1:
        raise _misfit(defect, f"{where}: {len(scopes)} definitions of {defect.scope}, expected one")
    edits = list(defect.function(scopes[0]))
    if len(edits) != 1:
        raise _misfit(defect, f"{where}: the edit matches {len(edits)} times in {defect.scope}")
    old, new = edits[0]
    changed = module.deep_replace(old, new)
    if not isinstance(changed, cst.Module):
        raise DefectError(f"{where}: the edit of {defect.scope} replaces the whole file")
    if changed.code == source:
        raise DefectError(f"{where}: the edit of {defect.scope} changes nothing")
    return changed.code


def _misfit(defect: Defect, message: str) -> HarnessError:
    """The error of an edit that does not match; Unsupported if the defect says what it fits."""
    return Unsupported(f"{message}; it fits {defect.fits}") if defect.fits else DefectError(message)


def _scopes(node: cst.CSTNode, names: list[str]) -> list[cst.CSTNode]:
    import libcst.matchers as m

    if not names:
        return [node]
    name, *inner = names
    definition = m.OneOf(m.ClassDef(name=m.Name(name)), m.FunctionDef(name=m.Name(name)))
    return [scope for d in m.findall(node, definition) for scope in _scopes(d, inner)]


def diff(file: str, before: str, after: str, old: str = "released", new: str = "defect") -> str:
    """The change of one file as a unified diff, from ``old/file`` to ``new/file``."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"{old}/{file}",
        f"{new}/{file}",
    )
    return "".join(lines)


def patched_copies(texts: Iterable[str], installed: Mapping[str, Distribution], into: Path) -> None:
    """Copy the installed packages that patches change into a folder, and patch the copies.

    Raises UserError if a package is installed elsewhere, as in editable mode, and Inconclusive as
    ``apply_patch`` does.
    """
    pins = {name: found.version for name, found in installed.items()}
    places = {import_name(n).partition(".")[0]: Path(one.folder) for n, one in installed.items()}
    for text in texts:
        for top in {path.partition("/")[0] for path in patches.paths(text, pins)}:
            if not (places[top] / top).is_dir():
                raise UserError(f"{top} is not in {places[top]}: patch the sources it comes from")
            if not (into / top).exists():
                shutil.copytree(places[top] / top, into / top)
        apply_patch(text, into, pins)


def apply_patch(text: str, site: Path, pins: Mapping[str, str]) -> str:
    """Apply a patch to the packages under ``site``; returns the change as a unified diff.

    Each file is replaced, so that other hard links to it keep the original text. Raises
    Inconclusive, naming the first hunk that does not apply.
    """
    changed = patches.files(text, pins)
    return "".join(_apply_one(path, of_file, site, pins) for path, of_file in changed.items())


def _apply_one(path: str, changed: PatchedFile, site: Path, pins: Mapping[str, str]) -> str:
    """Apply the changes of one file; returns them as a unified diff."""
    file = site / path
    if file.is_file() == changed.is_added_file:
        has = "already has" if changed.is_added_file else "has no"
        raise Inconclusive(f"the patch does not fit: {describe(pins)} {has} {path}")
    before = "" if changed.is_added_file else file.read_text(encoding="utf-8")
    changed.source_file = "/dev/null" if changed.is_added_file else f"a/{path}"
    changed.target_file = "/dev/null" if changed.is_removed_file else f"b/{path}"
    changed.patch_info = None  # names the file by its path in the repository
    _git_apply(str(changed), path, site, pins)
    remove_bytecode(file)
    after = "" if changed.is_removed_file else file.read_text(encoding="utf-8")
    return diff(path, before, after, new="patched")


def _git_apply(text: str, path: str, site: Path, pins: Mapping[str, str]) -> None:
    # Without the ceiling, git would look for a repository around the cache.
    ceiling = dict(os.environ, GIT_CEILING_DIRECTORIES=str(site.parent))
    process = subprocess.run(
        ["git", "apply", "-p1", "--whitespace=nowarn", "-"],
        input=text,
        cwd=site,
        env=ceiling,
        text=True,
        capture_output=True,
        check=False,
    )
    if process.returncode:
        failed = re.search(rf"{re.escape(path)}:(\d+)", process.stderr)
        where = f"the hunk at line {failed[1]} of {path}" if failed else f"the change of {path}"
        raise Inconclusive(f"the patch does not fit: {where} does not apply to {describe(pins)}")
