"""Which releases an expression means."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.errors import Inconclusive, UserError
from harness.upstream import releases
from tests.index import Handler, address, file, page, serving

KNOWN = ["5.1.0", "5.0.1", "5.0.0", "4.36.10", "4.36.2", "4.35.0", "4.34.1", "4.34.0", "4.9.0"]
SWEEP = ("matrix", "scenario=rope_zero_init", "pins.transformers=4.36:4.38")


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    """An index that knows of these, of a preview and of one that was yanked."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("UV_OFFLINE", raising=False)
    with serving() as server:
        monkeypatch.setenv("UV_DEFAULT_INDEX", address(server))
        monkeypatch.setenv("PIP_INDEX_URL", address(server))
        files = [file(f"up-{version}.tar.gz", None) for version in ["5.2.0rc1", *KNOWN]]
        Handler.pages["up"] = page(*files, file("up-4.36.0.tar.gz", None, "it was broken"))
        yield Handler


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that does not answer."""
    for variable in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9/simple")


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("4.36.2", ["4.36.2"]),
        ("4.34", ["4.34.0"]),
        ("v4.36.2", ["4.36.2"]),
        ("4.36.2.0", ["4.36.2"]),
        ("4.34:4.35", ["4.34.0", "4.34.1", "4.35.0"]),
        ("4.34:4.34", ["4.34.0", "4.34.1"]),
        ("4.36:5.0", ["4.36.2", "4.36.10", "5.0.0", "5.0.1"]),
        ("4.36:5.0.0", ["4.36.2", "4.36.10", "5.0.0"]),
        ("5:", ["5.0.0", "5.0.1", "5.1.0"]),
        (":4.34.0", ["4.9.0", "4.34.0"]),
        ("minor", ["4.9.0", "4.34.1", "4.35.0", "4.36.10", "5.0.1", "5.1.0"]),
        ("4.36::minor", ["4.36.10", "5.0.1", "5.1.0"]),
        ("5.1.0, 4.35:4.36:minor", ["4.35.0", "4.36.10", "5.1.0"]),
        ("5.1.0,5.1", ["5.1.0"]),
    ],
)
def test_an_expression_means_these_oldest_first(expression: str, meant: list[str]) -> None:
    assert releases.chosen("up", expression) == meant


def test_all_is_every_release_but_previews() -> None:
    assert releases.chosen("up", "all") == KNOWN[::-1]
    assert releases.chosen("up", ":") == KNOWN[::-1]


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        (
            "4.37:4.99",
            "pins.up=4.37:4.99: no release of up is in this range: releases go from 4.9.0",
        ),
        ("5.0:4.34", "no release of up is in this range"),
        ("4.36.7", "no release up==4.36.7: the nearest are 4.36.2 and 4.36.10"),
        ("4.34:4.36,4.36.0", "up==4.36.0 was yanked: the nearest are 4.35.0 and 4.36.2"),
        ("4.34:4.36:major", "'4.36:major' is not a version. Choices: a version (0.15.4), a range"),
        ("latest", "'latest' is not a version. Choices:"),
        ("", "'' is not a version"),
    ],
)
def test_what_means_no_release_is_one_line_that_helps(expression: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        releases.chosen("up", expression)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_without_an_index_only_single_releases_can_be_meant(silent: None) -> None:
    with pytest.raises(Inconclusive, match="the package index does not respond"):
        releases.chosen("up", "minor")
    with pytest.raises(Inconclusive):
        releases.chosen("up", "4.34.0,4.36:")
    assert releases.chosen("up", "4.36.2, 4.34.0") == ["4.34.0", "4.36.2"]


@pytest.mark.parametrize("expression", ["4.36:4.38", "all"])
def test_the_wheels_that_lie_here_are_not_all_the_releases_there_are(
    silent: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    expression: str,
) -> None:
    (tmp_path / "transformers-1.2.3-py3-none-any.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main([*SWEEP[:2], f"pins.transformers={expression}"]) == 3
    told = capsys.readouterr().err
    assert told.startswith("harness: the package index does not respond")
    assert told.count("\n") == 1


def test_offline_a_single_release_is_taken_at_its_word_and_nobody_is_asked(
    index: type[Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert releases.chosen("up", "4.36.3.0, v4.36.2, 5.0.0, 5.1") == [
        "4.36.2",
        "4.36.3",
        "5.0.0",
        "5.1",
    ]
    with pytest.raises(Inconclusive, match="UV_OFFLINE"):
        releases.chosen("up", "4.36:")
    assert index.asked == []


def test_a_command_asks_the_index_once(index: type[Handler]) -> None:
    for expression in ("4.36:", "4.34:4.35", "5.1.0"):
        releases.chosen("up", expression)
    with pytest.raises(UserError):
        releases.chosen("up", "4.36.0")
    assert index.asked == ["/simple/up/"]
