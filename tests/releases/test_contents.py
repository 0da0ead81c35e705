"""What overlays share: equal files, and bytecode that was compiled once."""

from __future__ import annotations

import errno
import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.rank import bytecode
from harness.rank.manifest import MANIFEST
from harness.releases import contents, overlay, overlay_cache
from harness.releases.overlay import Overlay
from tests.tiny_overlays import (
    CODE,
    DEFECT,
    OTHER,
    STACK,
    base,
    borrow_once,
    built,
    in_place,
    maker,
)

__all__ = ["base", "built", "maker"]


def test_equal_sources_are_compiled_once_and_damaged_bytecode_is_not_copied(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bytecode, "_compiled", {})  # other tests filled it
    compiled: list[Path] = []
    compile_all = bytecode.compile_all

    def noted(sources: Sequence[Path], site: Path) -> None:
        compiled.extend(sources)
        compile_all(sources, site)

    monkeypatch.setattr(bytecode, "compile_all", noted)
    source = "up/code.py"
    pyc = bytecode.of(borrow_once(cache).site / source)
    compiled.clear()
    assert borrow_once(cache, replace(STACK, date="2024-01-02")).has(source)
    assert compiled == []
    pyc.chmod(0o644)
    pyc.write_bytes(b"other")
    again = borrow_once(cache, replace(STACK, date="2024-01-03"))
    assert [path.name for path in compiled] == ["code.py"]
    assert bytecode.of(again.site / source).read_bytes() != b"other"


def test_equal_sources_have_equal_bytecode_in_overlays_of_different_processes(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process can therefore change its overlay without importing torch again."""
    compiled = []
    for day in ("2024-01-02", "2024-01-03"):
        monkeypatch.setattr(bytecode, "_compiled", {})  # as in a new process
        site = borrow_once(cache, replace(STACK, date=day)).site
        compiled.append(bytecode.of(site / "up" / "code.py").read_bytes())
    assert compiled[0] == compiled[1]


def test_bytecode_contains_the_hash_of_its_source(base: Overlay) -> None:
    compiled = next(base.site.glob("up/__pycache__/code.*.pyc")).read_bytes()
    assert compiled[4:8] == b"\3\0\0\0", "no checked hash of the source"
    source = (base.site / "up" / "code.py").read_bytes()
    assert compiled[8:16] == importlib.util.source_hash(source)


def test_for_another_python_nothing_is_compiled(cache: Path) -> None:
    pytest.importorskip("libcst")
    loan = borrow_once(cache, replace(STACK, python="3.99"), DEFECT)
    assert set(loan.files or ()) == {"up/__init__.py", "up/code.py", "up/cacert.pem"}
    assert not list(loan.site.rglob("*.pyc"))


def test_equal_files_of_two_overlays_are_stored_once(base: Overlay, cache: Path) -> None:
    alone, manifest = overlay_cache.disk_use(cache), (base.folder / MANIFEST).stat().st_size
    assert overlay_cache.own_use(base.folder) == alone > manifest
    second = borrow_once(cache, OTHER)
    assert (base.site / "up" / "code.py").samefile(second.site / "up" / "code.py")
    assert overlay_cache.own_use(base.folder) == manifest
    assert overlay_cache.disk_use(cache) == alone + (second.folder / MANIFEST).stat().st_size
    assert overlay_cache.delete(cache, second.key) == [second.key]
    assert overlay_cache.own_use(base.folder) == overlay_cache.disk_use(cache) == alone


def test_a_damaged_file_gets_into_no_new_overlay(built: Overlay, cache: Path) -> None:
    in_place(built.site / "up" / "code.py", CODE.replace("1", "3"))
    for day in ("2024-01-03", "2024-01-04", "2024-01-05", "2024-01-06"):
        code = borrow_once(cache, replace(STACK, date=day)).site / "up" / "code.py"
        assert code.read_text() == CODE
        if day == "2024-01-05":  # its content was hashed before
            in_place(code, CODE.replace("1", "3"))


def test_an_executable_file_and_one_that_is_not_share_no_content(tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    for name, mode in (("data", 0o644), ("tool", 0o755), ("copy", 0o644)):
        (site / name).write_text("#!/bin/sh\n")
        (site / name).chmod(mode)
    contents.share(site, overlay.seal(site), tmp_path / "cache")
    modes = {path.name: path.stat().st_mode & 0o777 for path in site.iterdir()}
    assert modes == {"data": 0o444, "tool": 0o555, "copy": 0o444}
    assert (site / "data").samefile(site / "copy")


def test_where_links_are_refused_overlays_have_files_of_their_own(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: object, target: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    code = [borrow_once(cache, stack).site / "up" / "code.py" for stack in (STACK, OTHER)]
    assert not code[0].samefile(code[1])
    assert code[0].read_text() == code[1].read_text() == CODE
