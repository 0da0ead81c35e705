"""Lock files: they fit the pins of their scenarios, and are used where they are valid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs import catalog, pins
from harness.bugs.pins import Stack
from harness.cli import lock
from harness.releases import locks, releases, resolution
from harness.system.errors import Inconclusive, Unsupported

BF16_CLIP = catalog.scenario("bf16_clip")
PINS = dict(BF16_CLIP.pins)
FOUND = {
    "3.10": {"up": "1.0", "old": "2", "numpy": "1.26"},
    "3.11": {"up": "1.0", "numpy": "1.26"},
    "3.12": {"up": "1.0", "numpy": "2.0"},
    "3.13": {"up": "1.0", "numpy": "2.0", "new": "3"},
}


def written(folder: Path, pins_: dict[str, str]) -> Path:
    path = locks.file(folder, pins_)
    path.write_text(locks.text("up 1.0", "2024-03-15", "my_bug", FOUND))
    return path


def test_each_python_gets_the_versions_that_were_resolved_for_it(tmp_path: Path) -> None:
    path = written(tmp_path, {"up": "1.0"})
    lock_file = locks.read(path)
    assert path.name == "up-1.0.txt"
    assert (lock_file.date, lock_file.pythons) == ("2024-03-15", tuple(FOUND))
    assert {python: lock_file.versions(python) for python in lock_file.pythons} == FOUND
    assert "up==1.0\n" in path.read_text()  # no marker where all have the same


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "numpy==2.0\nup==1.0\n"),
        ({"day": "2024-03-15"}, ""),  # the user wants this day
        ({"python": "3.14"}, ""),  # the lock has no such Python
        ({"platform": "linux-aarch64"}, ""),
    ],
)
def test_a_lock_is_used_where_it_is_valid(
    change: dict[str, str], text: str, tmp_path: Path
) -> None:
    written(tmp_path, PINS)
    target = {"python": "3.12", "platform": locks.PLATFORM, **change}
    stack = resolution.stack(replace(BF16_CLIP, locks=tmp_path), PINS, tmp_path / "cache", **target)
    assert (stack.lock, stack.date) == (text, "2024-03-15")


@pytest.mark.parametrize("text", ["", "up==1.0\n", "# up as of 2024-03-15.\n# Python: 3.11\nup=1"])
def test_an_invalid_lock_file_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "up-1.0.txt"
    path.write_text(text)
    with pytest.raises(Inconclusive, match=r"up-1\.0\.txt") as caught:
        locks.read(path)
    assert "\n" not in str(caught.value)


def test_a_lock_of_any_form_names_its_packages() -> None:
    text = "# made by\nup==1.0 \\\n    --hash=sha256:0a==\nBe_side==2.0rc1\nold==1 ; python_version"
    assert locks.versions(text) == {"up": "1.0", "be-side": "2.0rc1", "old": "1"}


def resolves(monkeypatch: pytest.MonkeyPatch, first_days: dict[str, str]) -> list[tuple[str, str]]:
    """Let stacks resolve to their pins from each Python's first day on; returns the calls."""
    calls = []

    def resolve(stack: Stack) -> str:
        calls.append((stack.python, stack.date))
        if stack.date < first_days[stack.python]:
            raise Unsupported("no wheels")
        return locks.lines(stack.pins)

    monkeypatch.setattr(resolution, "lock", resolve)
    monkeypatch.setattr(releases, "released", lambda *_: "2026-01-01")
    return calls


def test_a_python_that_was_too_young_is_resolved_for_its_first_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    never, early, day = "9999-01-01", "2020-01-01", "2024-03-15"
    first_days = {"3.10": early, "3.11": early, "3.12": never, "3.13": "2024-12-15"}
    calls = resolves(monkeypatch, first_days)
    by_python = lock.resolved(Stack({"up": "1.0"}, day, *pins.here()))
    assert list(by_python) == ["3.10", "3.11", "3.13"]
    assert calls == [*((python, day) for python in first_days), ("3.13", "2024-12-15")]


@pytest.fixture
def lock_folder(folders: Path) -> Path:
    """The empty folder of a scenario's lock files."""
    folder = catalog.folder("bf16_clip") / "locks"
    folder.mkdir()
    return folder


def test_the_command_writes_the_locks_of_the_variants_and_deletes_the_rest(
    lock_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves(monkeypatch, dict.fromkeys(locks.PYTHONS, "2020-01-01"))
    (lock_folder / "deepspeed-0.1.txt").touch()
    assert main(["lock", "bf16_clip"]) == 0
    (path,) = lock_folder.iterdir()
    assert locks.read(path).versions("3.13") == PINS


def test_a_resolution_that_fails_leaves_the_old_files(
    lock_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolves(monkeypatch, dict.fromkeys(locks.PYTHONS, "9999-01-01"))
    old = written(lock_folder, {"deepspeed": "0.1"})
    assert main(["lock", "bf16_clip"]) == 4
    assert list(lock_folder.iterdir()) == [old]
