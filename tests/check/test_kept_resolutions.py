"""The same input is resolved once a day."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from harness.check import environment, resolution_store
from harness.releases import index
from tests.check.published import publish, published, starts
from tests.index import Handler, no_network, served

__all__ = ["no_network", "published", "served", "starts"]


def requested_packages(published: type[Handler]) -> list[str]:
    """The packages that an index was asked for since the last call."""
    packages = [path.split("/")[2] for path in published.requests]
    published.requests.clear()
    index.forget()  # as in a new process
    return packages


@pytest.fixture
def unpinned(published: type[Handler], tmp_path: Path) -> str:
    """A file that names a release of nothing, and a package without wheels."""
    (tmp_path / "requirements.txt").write_text("up\nsource\nnowhere\n")
    return str(tmp_path / "requirements.txt")


def test_the_same_input_is_resolved_once_a_day(
    published: type[Handler], unpinned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_answer = environment.of_files([unpinned], ["up", "down", "source"])
    assert {"up", "source"} <= set(requested_packages(published))
    publish(published, "up", "3.0", day="2024-09-01")
    assert environment.of_files([unpinned], ["up", "down", "source"]) == first_answer
    assert requested_packages(published) == []
    monkeypatch.setattr(resolution_store, "_today", lambda: "2999-01-01")
    monkeypatch.setenv("UV_CACHE_DIR", f"{unpinned}.uv")  # uv keeps a page for ten minutes
    answer = environment.of_files([unpinned], ["up", "down", "source"])
    assert answer.packages["up"].version == "3.0"


@pytest.mark.parametrize(
    ("text", "names", "day", "variable"),
    [
        ("up<2\nsource\nnowhere", ("up", "down", "source"), "", ""),
        ("up\nsource\nnowhere\n-c bounds.txt", ("up", "down", "source"), "", ""),
        ("up\nsource\nnowhere", ("up", "down", "source"), "2024-03-01", ""),
        ("up\nsource\nnowhere", ("up", "source"), "", ""),
        ("up\nsource\nnowhere", ("up", "down", "source"), "", "UV_RESOLUTION"),
    ],
)
def test_another_input_is_resolved(
    published: type[Handler],
    unpinned: str,
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    names: tuple[str, ...],
    day: str,
    variable: str,
) -> None:
    environment.of_files([unpinned], ["up", "down", "source"])
    requested_packages(published)
    Path(unpinned).with_name("bounds.txt").write_text("down<2\n")
    Path(unpinned).write_text(text)
    if variable:
        monkeypatch.setenv(variable, "lowest")
    environment.of_files([unpinned], names, day)
    assert requested_packages(published)


def test_another_index_another_uv_and_another_python_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [str(resolution_store._key(["up"]))]
    for module, function in (
        (index, "configured"),
        (resolution_store, "release_of"),
        (resolution_store, "default_environment"),
        (platform, "libc_ver"),
    ):
        monkeypatch.setattr(module, function, lambda *_: {"another": "1"})
        keys.append(str(resolution_store._key(["up"])))
    assert len(set(keys)) == 5


@pytest.mark.parametrize("text", ["up\nsource==9.9\n--find-links wheels\n"])
def test_a_failed_resolution_is_not_kept(
    published: type[Handler], cache: Path, unpinned: str, text: str
) -> None:
    Path(unpinned).write_text(text)
    environment.of_files([unpinned], ["up", "down"])
    assert not cache.exists()


@pytest.mark.usefixtures("no_network")
def test_an_answer_without_an_index_is_not_kept(cache: Path, unpinned: str) -> None:
    Path(unpinned).write_text("accelerate\n")
    environment.of_files([unpinned], ["accelerate"])
    assert not cache.exists()


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"inputs": 5}', "null"])
def test_a_damaged_answer_is_resolved_again(
    published: type[Handler], cache: Path, unpinned: str, damage: str
) -> None:
    answer = environment.of_files([unpinned], ["up", "down", "source"])
    (file,) = (cache / "cells").iterdir()
    file.write_text(damage)
    assert environment.of_files([unpinned], ["up", "down", "source"]) == answer
    assert file.read_text() != damage


def test_what_is_kept_contains_no_password_and_is_not_beside_the_file(
    published: type[Handler], cache: Path, unpinned: str
) -> None:
    environment.of_files([unpinned], ["up", "down", "source"])
    (file,) = (cache / "cells").iterdir()
    assert "secret" not in file.read_text()
    assert [path.name for path in Path(unpinned).parent.iterdir() if path.is_file()] == [
        "requirements.txt"
    ]


def test_a_cache_that_cannot_be_written_changes_no_answer(
    published: type[Handler], unpinned: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", "/dev/null")
    for _ in range(2):
        stack = environment.of_files([unpinned], ["up", "down", "source"])
        assert stack.packages["up"].version == "2.0"
