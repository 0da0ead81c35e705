"""Overlays, made of a tiny tree: no index is asked."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.errors import Inconclusive
from harness.files import locked, sha256
from harness.spec import Defect
from harness.upstream import overlay, overlay_cache, pins, quirks, resolution
from harness.upstream.overlay import DamagedOverlay, Overlay, borrowed
from harness.upstream.pins import Stack
from tests.another_user import as_nobody, needs_root

STACK = Stack({"up": "1.0", "beside": "2.0"}, "2024-01-01", *pins.here())
CODE = "def one():\n    return 1\n"


def one_to_two(function: Any) -> Iterator[tuple[Any, Any]]:
    import libcst as cst
    import libcst.matchers as m

    for old in m.findall(function, m.Integer("1")):
        yield old, cst.Integer("2")


DEFECT = Defect("two", "up", "up/code.py", "one", one_to_two, "one is two")


@pytest.fixture(autouse=True)
def maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Has overlays made of two small files; every making adds a line to the file it gives."""
    made = tmp_path / "made"
    made.touch()

    def install(lock: str, stack: Stack, site: Path) -> None:
        with made.open("a") as file:
            file.write(f"{site.parent.name} {lock}")
        time.sleep(0.05)
        (site / "up").mkdir()
        (site / "up" / "__init__.py").write_text("")
        (site / "up" / "code.py").write_text(CODE)
        (site / "up" / "cacert.pem").write_text("certificates")

    monkeypatch.setattr(resolution, "lock", lambda stack: "up==1.0\n")
    monkeypatch.setattr(resolution, "install", install)
    return made


def contents(cache: Path) -> list[str]:
    """What the cache's folder of overlays holds, less the locks."""
    return sorted(p.name for p in (cache / "overlays").iterdir() if p.suffix != ".lock")


@pytest.fixture
def base(cache: Path) -> Iterator[Overlay]:
    with borrowed(STACK, (), cache) as lent:
        yield lent


def test_a_key_depends_on_nothing_but_what_goes_in() -> None:
    turned = replace(STACK, pins=dict(reversed(list(STACK.pins.items()))))
    assert overlay.key(STACK) == overlay.key(turned)
    assert overlay.key(STACK, [DEFECT]) == overlay.key(STACK, [replace(DEFECT, about="new words")])


@pytest.mark.parametrize(
    "change",
    [
        {"pins": {"up": "1.1", "beside": "2.0"}},
        {"date": "2024-01-02"},
        {"python": "3.99"},
        {"platform": "linux-other"},
        {"lock": "up==1.0\n"},
    ],
)
def test_a_key_changes_with_the_stack(change: dict[str, Any]) -> None:
    assert overlay.key(replace(STACK, **change)) != overlay.key(STACK)


@pytest.mark.parametrize(
    "change",
    [{"name": "x"}, {"file": "up/x.py"}, {"scope": "two"}, {"edit": lambda function: iter(())}],
)
def test_a_key_changes_with_the_defect(change: dict[str, Any]) -> None:
    keys = {
        overlay.key(STACK, defects) for defects in [(), (DEFECT,), (replace(DEFECT, **change),)]
    }
    assert len(keys) == 3


def test_a_key_changes_with_what_the_harness_adds_to_a_resolution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = overlay.key(STACK)
    monkeypatch.setitem(quirks.CONSTRAINTS, "up<2", "beside<3")
    assert overlay.key(STACK) != before


def test_an_overlay_is_made_once_and_then_found(cache: Path, maker: Path) -> None:
    for first in (True, False):
        with borrowed(STACK, (), cache) as lent:
            assert lent.made is first
            assert (lent.site / "up" / "code.py").read_text() == CODE
            assert lent.lock.startswith("up==1.0")
    assert len(maker.read_text().splitlines()) == 1
    assert overlay.is_made(STACK, (), cache)


def test_who_waits_for_an_overlay_does_not_wait_for_its_users(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two variants of one stack: the second was asked for while the first was being made."""
    is_there = iter([False, False])  # as it was when the second one looked
    with borrowed(STACK, (), cache) as lent:
        real = overlay._is_there
        monkeypatch.setattr(overlay, "_is_there", lambda *of: next(is_there, real(*of)))
        with overlay.makers() as makers:
            assert makers.submit(overlay.make, STACK, (), cache).result(timeout=30) is False
        assert lent.site.is_dir()


def test_an_overlay_is_made_aside_and_renamed_when_it_is_whole(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    original: Callable[..., None] = resolution.install

    def install(lock_file: Path, stack: Stack, site: Path) -> None:
        original(lock_file, stack, site)
        seen.append(
            (site.parent.name[0], overlay.is_made(STACK, (), cache), overlay_cache.folders(cache))
        )

    monkeypatch.setattr(resolution, "install", install)
    with borrowed(STACK, (), cache) as lent:
        assert seen == [(".", False, [])]
        assert contents(cache) == [lent.key]


def test_a_maker_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original: Callable[..., None] = resolution.install

    def install(lock_file: Path, stack: Stack, site: Path) -> None:
        original(lock_file, stack, site)
        raise Inconclusive("the network went away")

    monkeypatch.setattr(resolution, "install", install)
    with pytest.raises(Inconclusive, match="went away"), borrowed(STACK, (), cache):
        pass
    assert contents(cache) == []
    monkeypatch.setattr(resolution, "install", original)
    with borrowed(STACK, (), cache) as lent:
        assert lent.made


def test_a_defect_that_does_not_match_leaves_only_the_base(cache: Path) -> None:
    pytest.importorskip("libcst")
    lost = replace(DEFECT, scope="three")
    told = r"up==1\.0, up/code\.py: 0 definitions of three"
    with pytest.raises(Inconclusive, match=told), borrowed(STACK, (lost,), cache):
        pass
    assert contents(cache) == [overlay.key(STACK)]


def test_a_defect_leaves_the_pristine_file_alone(cache: Path, base: Overlay) -> None:
    pytest.importorskip("libcst")
    with borrowed(STACK, (DEFECT,), cache) as lent:
        assert (lent.site / "up" / "code.py").read_text() == CODE.replace("1", "2")
        assert (base.site / "up" / "code.py").read_text() == CODE
        assert lent.hash_of(DEFECT.file) != base.hash_of(DEFECT.file)
        assert lent.diff.splitlines()[-2:] == ["-    return 1", "+    return 2"]
        assert base.diff == ""
        untouched = "up/__init__.py"
        assert (lent.site / untouched).samefile(base.site / untouched)


@contextmanager
def processes(count: int, job: Callable[..., None], *arguments: object) -> Iterator[None]:
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=job, args=arguments) for _ in range(count)]
    for process in started:
        process.start()
    yield
    for process in started:
        process.join(30)
        assert process.exitcode == 0


def borrow(cache: Path, start: Any, answers: Any) -> None:
    start.wait(30)
    with borrowed(STACK, (), cache) as lent:
        answers.put((lent.made, (lent.site / "up" / "code.py").read_text()))


def test_two_processes_that_want_the_same_overlay_make_it_once(cache: Path, maker: Path) -> None:
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(2), context.Queue()
    with processes(2, borrow, cache, start, answers):
        found = [answers.get(timeout=30) for _ in range(2)]
    assert sorted(found) == [(False, CODE), (True, CODE)]
    assert len(maker.read_text().splitlines()) == 1


def in_place(file: Path, text: str) -> None:
    """Write into a file as it is, as who does not know that it is shared: its inode stays."""
    file.chmod(0o644)
    file.write_text(text)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (Path.unlink, "cannot be read: No such file or directory"),
        (lambda file: in_place(file, CODE + "# more\n"), f"is {len(CODE) + 7} bytes, SHA-256 "),
    ],
    ids=["lost", "longer"],
)
def test_a_lost_or_changed_file_is_told_with_the_way_out(
    cache: Path, change: Callable[[Path], object], told: str
) -> None:
    with borrowed(STACK, (), cache) as lent:
        change(lent.site / "up" / "code.py")
    with pytest.raises(DamagedOverlay) as caught, borrowed(STACK, (), cache):
        pass
    made = hashlib.sha256(CODE.encode()).hexdigest()[:12]
    assert f"it was {len(CODE)} bytes, SHA-256 {made}, now it {told}" in str(caught.value)
    assert "up/code.py is not as it was made" in str(caught.value)
    assert f"python -m harness clean {lent.key}" in str(caught.value)


@pytest.mark.parametrize("change", [Path.unlink, lambda file: in_place(file, "rewritten")])
def test_data_may_change_as_no_rank_executes_it(
    cache: Path, change: Callable[[Path], object]
) -> None:
    with borrowed(STACK, (), cache) as lent:
        change(lent.site / "up" / "cacert.pem")
    with borrowed(STACK, (), cache) as again:
        assert again.key == lent.key


@pytest.mark.parametrize("name", ["x.py", "x.cpython-311.pyc", "x.so", "x.so.1.2", "x.cu", "x.cpp"])
def test_what_a_rank_executes_is_code(name: str) -> None:
    assert overlay.CODE.search(f"up/{name}")


def test_a_manifest_holds_every_file_as_it_was_made(cache: Path, base: Overlay) -> None:
    files = base.files
    assert files is not None
    assert {"up/__init__.py", "up/code.py"} < set(files)
    on_disk = {str(p.relative_to(base.site)) for p in base.site.rglob("*") if p.is_file()}
    assert set(files) == on_disk
    for file, (size, content) in files.items():
        assert ((base.site / file).stat().st_size, sha256(base.site / file)) == (size, content)


def test_the_hash_of_a_file_is_that_of_its_making(cache: Path) -> None:
    with borrowed(STACK, (), cache) as lent:
        made = lent.hash_of("up/code.py")
        in_place(lent.site / "up" / "code.py", CODE.replace("1", "3"))
        assert lent.hash_of("up/code.py") == made
    with borrowed(STACK, (), cache) as again:  # of the same size: the ranks will tell
        assert again.hash_of("up/code.py") == made != sha256(again.site / "up" / "code.py")


def test_nothing_in_an_overlay_is_written_to_by_accident(base: Overlay) -> None:
    assert not any(p.stat().st_mode & 0o222 for p in base.site.rglob("*") if p.is_file())


def test_a_defect_is_not_put_into_a_file_that_was_changed(cache: Path) -> None:
    pytest.importorskip("libcst")
    with borrowed(STACK, (), cache) as lent:
        in_place(lent.site / "up" / "code.py", CODE.replace("one", "uno"))
    with pytest.raises(DamagedOverlay, match=r"code\.py"), borrowed(STACK, (DEFECT,), cache):
        pass
    assert contents(cache) == [lent.key]


def test_a_change_of_what_a_defect_left_alone_is_not_taken_for_as_made(cache: Path) -> None:
    pytest.importorskip("libcst")
    other = "up/__init__.py"
    with borrowed(STACK, (), cache) as lent:
        beside = next(lent.site.glob("up/__pycache__/__init__.*.pyc"))
        made = sha256(beside)
        content = beside.read_bytes()
        beside.chmod(0o644)
        beside.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with borrowed(STACK, (DEFECT,), cache) as defective:
        assert defective.hash_of(str(beside.relative_to(lent.site))) == made
        assert defective.hash_of(other) == lent.hash_of(other)


def test_bytecode_is_bound_to_what_its_source_says(cache: Path, base: Overlay) -> None:
    compiled = next(base.site.glob("up/__pycache__/code.*.pyc")).read_bytes()
    assert compiled[4:8] == b"\3\0\0\0", "not told from its source by a checked hash"
    source = (base.site / "up" / "code.py").read_bytes()
    assert compiled[8:16] == importlib.util.source_hash(source)


def test_for_another_python_nothing_is_compiled(cache: Path) -> None:
    pytest.importorskip("libcst")
    with borrowed(replace(STACK, python="3.99"), (DEFECT,), cache) as lent:
        assert set(lent.files or ()) == {"up/__init__.py", "up/code.py", "up/cacert.pem"}
        assert not list(lent.site.rglob("*.pyc"))


@pytest.mark.parametrize("text", ["{", "[]", "{}", None], ids=str)
def test_an_overlay_that_does_not_say_what_it_is_is_damaged(cache: Path, text: str | None) -> None:
    with borrowed(STACK, (), cache) as lent:
        file = lent.folder / overlay.MANIFEST
        sizes_alone = {**json.loads(file.read_text()), "files": {"up/code.py": len(CODE)}}
        file.write_text(json.dumps(sizes_alone) if text is None else text)
    with pytest.raises(DamagedOverlay, match="clean " + lent.key), borrowed(STACK, (), cache):
        pass


def test_an_overlay_that_is_lent_out_is_not_freed(cache: Path) -> None:
    with borrowed(STACK, (), cache) as lent:
        assert not overlay_cache.delete(cache, lent.key)
        assert overlay_cache.folders(cache) == [lent.folder]
    assert overlay_cache.delete(cache, lent.key)
    assert contents(cache) == []


def test_what_a_killed_maker_left_is_swept_away(cache: Path, base: Overlay) -> None:
    leftover = cache / "overlays" / f".{'0' * 20}.abc123"
    leftover.mkdir()
    (leftover / "half").write_text("")
    overlay_cache.delete_unfinished(cache)
    assert contents(cache) == [base.key]


def test_what_a_living_maker_is_making_is_not_swept_away(cache: Path) -> None:
    name = "0" * 20
    aside = cache / "overlays" / f".{name}.abc123"
    aside.mkdir(parents=True)
    with locked(overlay.lock_file(cache, name)):
        overlay_cache.delete_unfinished(cache)
    assert aside.is_dir()


def test_linked_files_take_their_room_once(cache: Path, base: Overlay) -> None:
    twice = base.folder / "twice"
    before = overlay_cache.disk_use(base.folder)
    os.link(base.site / "up" / "code.py", twice)
    assert overlay_cache.disk_use(base.folder) == before
    seen: set[int] = set()
    assert overlay_cache.disk_use(base.folder, seen) > 0
    assert overlay_cache.disk_use(base.folder, seen) == 0


def _lend(cache: Path, stack: Stack) -> Iterator[str]:
    try:
        with borrowed(stack, (), cache) as lent:
            yield (lent.site / "up" / "code.py").read_text()
    except Inconclusive as error:
        yield str(error)


@needs_root
@pytest.mark.parametrize("with_lock", [True, False])
def test_somebody_elses_cache_can_be_read(shared: Path, with_lock: bool) -> None:
    cache = shared / "cache"
    with borrowed(STACK, (), cache) as lent:
        pass
    if not with_lock:
        overlay.lock_file(cache, lent.key).unlink()
    with as_nobody(_lend, cache, STACK) as text:
        assert text == CODE
        if with_lock:
            assert not overlay_cache.delete(cache, lent.key), "freed under another user's run"
    assert overlay_cache.delete(cache, lent.key)


@needs_root
def test_what_somebody_elses_cache_lacks_is_told_in_one_line(shared: Path) -> None:
    cache = shared / "cache"
    with borrowed(STACK, (), cache):
        pass
    with as_nobody(_lend, cache, replace(STACK, date="2024-02-02")) as told:
        assert told == f"cannot write {cache}: Permission denied; name another HARNESS_CACHE"
    with as_nobody(_lend, shared / "none", STACK) as told:
        assert told.startswith(f"cannot write {shared / 'none'}: Permission denied")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("step", ["write_whole", "sealed", "_put_in"])
def test_a_full_disk_leaves_no_half_an_overlay(
    cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, step: str
) -> None:
    with borrowed(STACK, (), cache) as base:
        pass

    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    other = replace(STACK, date="2024-02-02")
    stack, defects = (STACK, (DEFECT,)) if step == "_put_in" else (other, ())
    monkeypatch.setattr(overlay, step, full)
    with pytest.raises(Inconclusive) as caught, borrowed(stack, defects, cache):
        pass
    told = f"no room on the disk for {cache}: free some, or name another HARNESS_CACHE"
    assert str(caught.value) == told
    assert contents(cache) == [base.key]


@pytest.mark.parametrize("umask", [0o002, 0o077], ids=oct)
def test_an_overlay_is_open_to_whom_the_umask_lets(cache: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        with borrowed(STACK, (), cache) as lent:
            modes = {p: p.stat().st_mode & 0o777 for p in (lent.folder, *lent.folder.rglob("*"))}
    finally:
        os.umask(before)
    for path, mode in modes.items():
        inside = lent.site in path.parents
        expected = 0o777 if path.is_dir() else 0o444 if inside else 0o666
        assert mode == expected & ~umask, path
