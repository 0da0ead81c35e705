"""Fixtures that several test files share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import NoReturn

import pytest

import scenarios
from harness.bugs import catalog, result_file
from harness.bugs.results import Status
from harness.releases import index, releases, uv
from harness.run import cells
from harness.system import machine
from harness.system.errors import Inconclusive
from tests import overlays
from tests.made_up import KNOWN, Upstream, cell, published
from tests.recording import RECORDED, Recording

TODAY = int(os.environ.setdefault("DAY_OF_TESTS", str(date.today().toordinal())))
"""All processes of one session have the same day, also at midnight."""
SLOW_DAYS = 30
"""CI runs each slow test every thirtieth day: all of them take hours on 2 cores."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Make the cases of tests ``by_day(days)`` exhaustive, but those that CI runs today.

    Cases are numbered as they are collected; ``by_day(days, number)`` gives a number. Slow tests
    are ``by_day(SLOW_DAYS)`` unless they say otherwise.
    """
    numbers: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("by_day")
        if mark is None and item.get_closest_marker("slow"):
            mark = pytest.mark.by_day(SLOW_DAYS).mark
        if mark is None or item.get_closest_marker("exhaustive"):
            continue
        path = str(item.path)
        first = zlib.crc32(item.path.name.encode())  # another day for each file
        own_number = first + numbers[path]
        days, number = mark.args if mark.args[1:] else (mark.args[0], own_number)
        numbers[path] += 1
        if (number + TODAY) % days:
            item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(autouse=True)
def no_index(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that launches nothing installs nothing: it gets no network and needs no overlay."""
    if not {"launch", "scenario"} & {mark.name for mark in request.node.iter_markers()}:
        monkeypatch.setattr(uv, "run", _refuse_uv)
        monkeypatch.setattr(overlays, "cache_folder", _refuse_overlays)
    index.forget()  # what it answered to another test


def _refuse_uv(arguments: Sequence[str], *_: object, **__: object) -> NoReturn:
    raise Inconclusive(f"a test without overlays called uv {' '.join(arguments[:2])}")


def _refuse_overlays() -> NoReturn:
    raise Inconclusive("a test that borrows overlays has the mark launch, even if they are cached")


@pytest.fixture
def recording(tmp_path: Path) -> Recording:
    """A copy of the recorded run, to change."""
    return Recording(shutil.copytree(RECORDED, tmp_path / "run"))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep resolvers offline; tests/check/test_resolver.py tests them with an index."""
    monkeypatch.setenv("UV_OFFLINE", "1")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("HARNESS_CACHE", str(folder))
    return folder


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that other users can read; they cannot read pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    folder = tmp_path / "tmpfs"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of run folders; it does not exist before the first run."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("HARNESS_RUNS", str(folder))
    return folder


@pytest.fixture
def more_scenarios(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an additional upstream; ``made_up.scenario_files`` puts scenarios into it."""
    folder = tmp_path / "more" / "another_upstream"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    monkeypatch.setattr(scenarios, "__path__", [*scenarios.__path__, str(folder.parent)])
    catalog.forget()
    yield folder
    catalog.forget()
    for name in [name for name in sys.modules if name.startswith("scenarios.another_upstream")]:
        del sys.modules[name]


@pytest.fixture
def upstream(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    stand_in = Upstream(tmp_path / "made_up")
    monkeypatch.setattr(cells, "run", stand_in)
    monkeypatch.setattr(index, "releases", published(*KNOWN))
    monkeypatch.setattr(releases, "released", lambda *_: "2024-03-01")
    monkeypatch.setattr(cells, "make_overlay", lambda *_, **__: False)
    monkeypatch.setattr(machine, "gpus", lambda: ())
    return stand_in


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Empty folders for the scenarios, which a test may change."""
    real, root = catalog.folder, tmp_path / "scenarios"

    def folder(name: str) -> Path:
        path = root / real(name).parent.name / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    monkeypatch.setattr(catalog, "folder", folder)
    return root


@pytest.fixture
def record(folders: Path) -> Callable[..., None]:
    def add(**answers: Status) -> None:
        result_file.record(cell(release.replace("_", "."), a) for release, a in answers.items())

    return add
