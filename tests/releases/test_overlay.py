"""Overlays are built once, are used by many, and are never changed."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import sys
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.bugs import pins
from harness.bugs.packages import Undeclared, Upstream
from harness.bugs.pins import Stack
from harness.rank.manifest import MANIFEST, DamagedOverlay
from harness.releases import overlay, overlay_cache, resolution
from harness.releases.overlay import Overlay, borrow
from harness.system.errors import Fault, Inconclusive
from harness.system.files import locked, sha256
from tests.another_user import as_nobody, needs_root
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
    overlays,
)

__all__ = ["base", "built", "maker"]


def test_a_key_does_not_depend_on_order_or_texts() -> None:
    turned = replace(STACK, pins=dict(reversed(list(STACK.pins.items()))))
    assert overlay.key(STACK) == overlay.key(turned)
    assert overlay.key(STACK, [DEFECT]) == overlay.key(STACK, [replace(DEFECT, about="new words")])


WORDS = "pass"


def test_a_key_changes_with_a_text_that_an_edit_refers_to(monkeypatch: pytest.MonkeyPatch) -> None:
    defect = replace(DEFECT, edit=lambda function: iter([(function, WORDS)]))
    before = overlay.key(STACK, [defect])
    monkeypatch.setattr(sys.modules[__name__], "WORDS", "continue")
    assert overlay.key(STACK, [defect]) != before


def _helper(function: Any) -> Any:
    return function, "pass"


def _other_helper(function: Any) -> Any:
    return function, "continue"


def test_a_key_changes_with_a_function_that_an_edit_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    defect = replace(DEFECT, edit=lambda function: iter([_helper(function)]))
    before = overlay.key(STACK, [defect])
    monkeypatch.setattr(sys.modules[__name__], "_helper", _other_helper)
    assert overlay.key(STACK, [defect]) != before


def test_a_key_changes_with_each_part_of_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    others, edit = {"pins": {"up": "1.1", "beside": "2.0"}}, {"edit": lambda function: iter(())}
    platform = {"platform": "linux-other"}
    stack = [others, {"date": "2024-01-02"}, {"python": "3.99"}, platform, {"lock": "up==1.0\n"}]
    defects = [{}, {"name": "x"}, {"file": "up/x.py"}, {"scope": "two"}, edit]
    keys = [overlay.key(replace(STACK, **change)) for change in [{}, *stack]]  # type: ignore[arg-type]
    keys += [overlay.key(STACK, [replace(DEFECT, **change)]) for change in defects]  # type: ignore[arg-type]
    bound = Undeclared("beside<3", releases="<2")
    monkeypatch.setattr(pins, "upstreams", lambda: {"up": Upstream(undeclared=(bound,))})
    assert len({*keys, overlay.key(STACK)}) == 6 + 5 + 1


def test_an_overlay_is_built_once_and_then_used(cache: Path, maker: Path) -> None:
    for expected in (True, False):
        with borrow(STACK, (), cache) as loan:
            assert loan.is_new is expected
            assert (loan.site / "up" / "code.py").read_text() == CODE
            assert loan.lock.startswith("up==1.0")
    assert len(maker.read_text().splitlines()) == 1
    assert overlay.is_built(STACK, (), cache)


def test_a_finished_overlay_is_available_while_others_use_it(
    cache: Path, base: Overlay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two variants of one stack: the second was requested while the first was being built."""
    exists = iter([False, False])  # the second variant looked before it existed
    real = overlay._is_there
    monkeypatch.setattr(overlay, "_is_there", lambda *of: next(exists, real(*of)))
    with overlay.builders() as builders:
        assert builders.submit(overlay.build, STACK, (), cache).result(timeout=30) is False
    assert base.site.is_dir()


def test_a_build_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., None] = resolution.install

    def install(*arguments: Any) -> None:
        original(*arguments)
        raise Inconclusive("the network went away")

    with monkeypatch.context() as patch:
        patch.setattr(resolution, "install", install)
        with pytest.raises(Inconclusive, match="went away"):
            borrow_once(cache)
    assert overlays(cache) == []
    assert borrow_once(cache).is_new


def test_an_overlay_is_not_built_from_a_file_that_was_changed_after_its_release(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv installs what its cache has, also where somebody has written into that."""
    original: Callable[..., None] = resolution.install
    published = urlsafe_b64encode(hashlib.sha256(CODE.encode()).digest()).decode().rstrip("=")

    def install(lock: str, stack: Stack, site: Path) -> None:
        original(lock, stack, site)
        (site / "up-1.0.dist-info").mkdir()
        (site / "up-1.0.dist-info/METADATA").write_text("Name: up\nVersion: 1.0\n")
        (site / "up-1.0.dist-info/RECORD").write_text(
            f"up/code.py,sha256={published},{len(CODE)}\nup/gone.py,sha256={published},9\n"
            "up-1.0.dist-info/RECORD,,\n"
        )

    monkeypatch.setattr(resolution, "install", install)
    assert borrow_once(cache).is_new
    published = published[::-1]
    with pytest.raises(Fault, match=r"up/code\.py is not as up 1\.0 was released"):
        borrow_once(cache, OTHER)
    assert overlays(cache) == [overlay.key(STACK)]


def test_a_defect_that_does_not_match_leaves_only_the_base(cache: Path) -> None:
    pytest.importorskip("libcst")
    message = r"up==1\.0, up/code\.py: 0 definitions of three"
    with pytest.raises(Inconclusive, match=message):
        borrow_once(cache, STACK, replace(DEFECT, scope="three"))
    assert overlays(cache) == [overlay.key(STACK)]


def test_a_defect_leaves_the_pristine_file_alone(cache: Path, base: Overlay) -> None:
    pytest.importorskip("libcst")
    with borrow(STACK, (DEFECT,), cache) as loan:
        assert (loan.site / "up" / "code.py").read_text() == CODE.replace("1", "2")
        assert (base.site / "up" / "code.py").read_text() == CODE
        assert loan.hash_of(DEFECT.file) != base.hash_of(DEFECT.file)
        assert loan.diff.splitlines()[-2:] == ["-    return 1", "+    return 2"]
        assert base.diff == ""
        untouched = "up/__init__.py"
        assert (loan.site / untouched).samefile(base.site / untouched)


def borrow_and_report(cache: Path, start: Any, results: Any) -> None:
    start.wait(30)
    loan = borrow_once(cache)
    results.put((loan.is_new, (loan.site / "up" / "code.py").read_text()))


def test_two_processes_that_want_the_same_overlay_build_it_once(cache: Path, maker: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, results = context.Barrier(2), context.Queue()
    started = [
        context.Process(target=borrow_and_report, args=(cache, start, results)) for _ in range(2)
    ]
    for process in started:
        process.start()
    assert sorted(results.get(timeout=30) for _ in range(2)) == [(False, CODE), (True, CODE)]
    for process in started:
        process.join(30)
        assert process.exitcode == 0
    assert len(maker.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "state"),
    [
        (Path.unlink, "cannot be read: No such file or directory"),
        (lambda file: in_place(file, CODE + "# more\n"), f"is {len(CODE) + 7} bytes, SHA-256 "),
    ],
    ids=["lost", "longer"],
)
def test_a_lost_or_changed_file_is_reported_with_the_next_step(
    cache: Path, built: Overlay, change: Callable[[Path], object], state: str
) -> None:
    change(built.site / "up" / "code.py")
    with pytest.raises(DamagedOverlay) as caught:
        borrow_once(cache)
    digest = hashlib.sha256(CODE.encode()).hexdigest()[:12]
    assert f"it was {len(CODE)} bytes, SHA-256 {digest}, now it {state}" in str(caught.value)
    assert "up/code.py is not as it was made" in str(caught.value)
    assert f"python -m harness clean {built.key}" in str(caught.value)


@pytest.mark.parametrize("change", [Path.unlink, lambda file: in_place(file, "rewritten")])
def test_data_may_change_as_no_rank_executes_it(
    cache: Path, built: Overlay, change: Callable[[Path], object]
) -> None:
    change(built.site / "up" / "cacert.pem")
    assert borrow_once(cache).key == built.key
    for name in ("x.py", "x.cpython-311.pyc", "x.so", "x.so.1.2", "x.cu", "x.cpp"):
        assert overlay.CODE.search(f"up/{name}")


def test_a_manifest_contains_every_file_as_it_was_made(base: Overlay) -> None:
    files = base.files
    assert files is not None
    assert {"up/__init__.py", "up/code.py"} < set(files)
    on_disk = {str(p.relative_to(base.site)) for p in base.site.rglob("*") if p.is_file()}
    assert set(files) == on_disk
    for file, (size, content) in files.items():
        assert ((base.site / file).stat().st_size, sha256(base.site / file)) == (size, content)


def test_a_defect_is_not_put_into_a_file_that_was_changed(cache: Path, built: Overlay) -> None:
    pytest.importorskip("libcst")
    in_place(built.site / "up" / "code.py", CODE.replace("one", "uno"))
    with pytest.raises(DamagedOverlay, match=r"code\.py"):
        borrow_once(cache, STACK, DEFECT)
    assert overlays(cache) == [built.key]


def test_a_changed_file_that_a_defect_left_alone_keeps_the_hash_as_built(
    cache: Path, built: Overlay
) -> None:
    pytest.importorskip("libcst")
    compiled = next(built.site.glob("up/__pycache__/__init__.*.pyc"))
    before, content = sha256(compiled), compiled.read_bytes()
    compiled.chmod(0o644)
    compiled.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    defective = borrow_once(cache, STACK, DEFECT)
    assert defective.hash_of(str(compiled.relative_to(built.site))) == before
    assert defective.hash_of("up/__init__.py") == built.hash_of("up/__init__.py")


@pytest.mark.parametrize("text", ["{", "[]", "{}", None], ids=str)
def test_an_overlay_without_a_valid_manifest_is_damaged(
    cache: Path, built: Overlay, text: str | None
) -> None:
    file = built.folder / MANIFEST
    only_sizes = {**json.loads(file.read_text()), "files": {"up/code.py": len(CODE)}}
    file.write_text(json.dumps(only_sizes) if text is None else text)
    with pytest.raises(DamagedOverlay, match="clean " + built.key):
        borrow_once(cache)


def test_an_overlay_is_deleted_with_its_contents_unless_it_is_in_use(cache: Path) -> None:
    with borrow(STACK, (), cache) as loan:
        assert not overlay_cache.delete(cache, loan.key)
        assert overlay_cache.folders(cache) == [loan.folder]
    assert any((cache / "contents").glob("*/*"))
    assert overlay_cache.delete(cache, loan.key)
    assert overlays(cache) == []
    assert not any((cache / "contents").glob("*/*"))


def test_unfinished_overlays_are_deleted_unless_they_are_being_built(cache: Path) -> None:
    name = "0" * 20
    unfinished = cache / "overlays" / f".{name}.abc123"
    unfinished.mkdir(parents=True)
    (unfinished / "half").write_text("")
    with locked(overlay.lock_file(cache, name)):
        overlay_cache.delete_unfinished(cache)
    assert unfinished.is_dir()
    overlay_cache.delete_unfinished(cache)
    assert overlays(cache) == []


def _lend(cache: Path, stack: Stack) -> Iterator[str]:
    try:
        with borrow(stack, (), cache) as loan:
            yield (loan.site / "up" / "code.py").read_text()
    except Inconclusive as error:
        yield str(error)


@needs_root
@pytest.mark.parametrize("with_lock", [True, False])
def test_the_cache_of_another_user_can_be_read(shared: Path, with_lock: bool) -> None:
    cache = shared / "cache"
    key = borrow_once(cache).key
    if not with_lock:
        overlay.lock_file(cache, key).unlink()
    with as_nobody(_lend, cache, STACK) as text:
        assert text == CODE
        assert not (with_lock and overlay_cache.delete(cache, key)), "another user's run uses it"
    assert overlay_cache.delete(cache, key)


@needs_root
def test_an_overlay_that_the_cache_of_another_user_lacks_is_one_line(shared: Path) -> None:
    cache = shared / "cache"
    borrow_once(cache)
    with as_nobody(_lend, cache, replace(STACK, date="2024-02-02")) as message:
        assert message == f"cannot write {cache}: Permission denied; name another HARNESS_CACHE"
    with as_nobody(_lend, shared / "none", STACK) as message:
        assert message.startswith(f"cannot write {shared / 'none'}: Permission denied")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write_whole", "seal", "_apply_edits"])
def test_a_full_disk_leaves_no_part_of_an_overlay(
    cache: Path, built: Overlay, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(overlay, step, full)
    stack, *defects = (
        (STACK, DEFECT) if step == "_apply_edits" else (replace(STACK, date="2024-02-02"),)
    )
    with pytest.raises(Inconclusive) as caught:
        borrow_once(cache, stack, *defects)
    message = f"no room on the disk for {cache}: free some, or name another HARNESS_CACHE"
    assert str(caught.value) == message
    assert overlays(cache) == [built.key]


@pytest.mark.parametrize("umask", [0o002, 0o077], ids=oct)
def test_the_umask_decides_who_can_read_an_overlay_and_nobody_can_write_its_files(
    cache: Path, umask: int
) -> None:
    before = os.umask(umask)
    try:
        loan = borrow_once(cache)
    finally:
        os.umask(before)
    for path in (loan.folder, *loan.folder.rglob("*")):
        inside = loan.site in path.parents
        expected = 0o777 if path.is_dir() else 0o444 if inside else 0o666
        assert path.stat().st_mode & 0o777 == expected & ~umask, path


def test_where_locks_do_not_work_the_first_overlay_counts(
    cache: Path, maker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def no_lock(*_: object, **__: object) -> Iterator[bool]:
        yield True

    monkeypatch.setattr(overlay, "locked", no_lock)
    name = overlay.key(STACK)
    install = overlay._install

    def overtaken(stack: Stack, site: Path) -> str:
        text = install(stack, site)
        monkeypatch.setattr(overlay, "_install", install)
        overlay._build_folder(cache, name, STACK, (), None)  # another machine
        return text

    monkeypatch.setattr(overlay, "_install", overtaken)
    overlay._build_folder(cache, name, STACK, (), None)
    assert borrow_once(cache).key == name
    assert [path.name for path in (cache / "overlays").iterdir() if path.is_dir()] == [name]
