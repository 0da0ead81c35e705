"""Overlays of a tiny tree: nothing is downloaded."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bugs import pins
from harness.bugs.api.spec import Defect
from harness.bugs.pins import Stack
from harness.releases import resolution
from harness.releases.overlay import Overlay, borrow
from tests.made_up import one_to_two

STACK = Stack({"up": "1.0", "beside": "2.0"}, "2024-01-01", *pins.here())
OTHER = replace(STACK, date="2024-01-02")
CODE = "def one():\n    return 1\n"
DEFECT = Defect("up", "up/code.py", "one", one_to_two, "one is two")


@pytest.fixture(autouse=True)
def maker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Builds overlays of three small files; each build adds a line to the returned file."""
    builds = tmp_path / "made"
    builds.touch()

    def install(lock: str, stack: Stack, site: Path) -> None:
        with builds.open("a") as file:
            file.write(f"{site.parent.name} {lock}")
        time.sleep(0.05)
        (site / "up").mkdir()
        for name, text in (("__init__.py", ""), ("code.py", CODE), ("cacert.pem", "certificates")):
            (site / "up" / name).write_text(text)

    monkeypatch.setattr(resolution, "lock", lambda stack: "up==1.0\n")
    monkeypatch.setattr(resolution, "install", install)
    return builds


def overlays(cache: Path) -> list[str]:
    """The cache's folder of overlays, without the lock files."""
    return sorted(p.name for p in (cache / "overlays").iterdir() if p.suffix != ".lock")


def borrow_once(cache: Path, stack: Stack = STACK, *defects: Defect) -> Overlay:
    with borrow(stack, defects, cache) as loan:
        return loan


@pytest.fixture
def base(cache: Path) -> Iterator[Overlay]:
    """An overlay in use."""
    with borrow(STACK, (), cache) as loan:
        yield loan


@pytest.fixture
def built(cache: Path) -> Overlay:
    """A finished overlay that nobody uses."""
    return borrow_once(cache)


def in_place(file: Path, text: str) -> None:
    """Write into a file without replacing it: its inode stays, which overlays may share."""
    file.chmod(0o644)
    file.write_text(text)
