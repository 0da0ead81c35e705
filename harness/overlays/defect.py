"""Defects: edits of upstream's syntax trees. An edit must match exactly once."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING

from harness.api.spec import Defect
from harness.system.errors import HarnessError, Inconclusive, Unsupported

if TYPE_CHECKING:
    import libcst as cst


class DefectError(Inconclusive):
    """An edit does not match exactly once: it was not written for the code of this release."""


def apply(defect: Defect, site: Path, release: str) -> str:
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
    edits = list(defect.edit(scopes[0]))
    if len(edits) != 1:
        raise _misfit(defect, f"{where}: the edit matches {len(edits)} times in {defect.scope}")
    old, new = edits[0]
    changed = module.deep_replace(old, new)
    if not isinstance(changed, cst.Module):
        raise DefectError(f"{where}: the edit of {defect.scope} replaces the whole file")
    if changed.code == source:
        raise DefectError(f"{where}: the edit of {defect.scope} changes nothing")
    return changed.code


def _misfit(defect: Defect, what: str) -> HarnessError:
    """The error of an edit that does not match: expected where the defect says what it fits."""
    return Unsupported(f"{what}; it fits {defect.fits}") if defect.fits else DefectError(what)


def _scopes(node: cst.CSTNode, names: list[str]) -> list[cst.CSTNode]:
    import libcst.matchers as m

    if not names:
        return [node]
    name, *inner = names
    definition = m.OneOf(m.ClassDef(name=m.Name(name)), m.FunctionDef(name=m.Name(name)))
    return [found for d in m.findall(node, definition) for found in _scopes(d, inner)]


def diff(file: str, before: str, after: str, old: str = "released", new: str = "defect") -> str:
    """The change of one file as a unified diff, from ``old/file`` to ``new/file``."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"{old}/{file}",
        f"{new}/{file}",
    )
    return "".join(lines)
