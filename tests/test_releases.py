"""Which releases an expression means."""

from __future__ import annotations

import pytest

from harness.spec import Inconclusive, UserError
from harness.upstream import pins, releases

KNOWN = ["5.1.0", "5.0.1", "5.0.0", "4.36.10", "4.36.2", "4.35.0", "4.34.1", "4.34.0", "4.9.0"]


@pytest.fixture(autouse=True)
def index(monkeypatch: pytest.MonkeyPatch) -> None:
    with_previews = ["5.2.0rc1", *KNOWN]
    monkeypatch.setattr(pins, "versions", lambda *_, **__: with_previews)
    monkeypatch.setattr(pins, "_is_yanked", lambda name, version: version == "4.36.0")


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("4.36.2", ["4.36.2"]),
        ("4.34", ["4.34.0"]),
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
        ("4.37:4.99", "pins.up=4.37:4.99: no release of up lies in this range: they go from 4.9.0"),
        ("5.0:4.34", "no release of up lies in this range"),
        ("4.36.7", "no release up==4.36.7: the nearest are 4.36.2 and 4.36.10"),
        ("4.34:4.36,4.36.0", "up==4.36.0 was yanked: the nearest are 4.35.0 and 4.36.2"),
        ("4.34:4.36:major", "'4.36:major' is no version. Choices: a version (0.15.4), a range"),
        ("latest", "'latest' is no version. Choices:"),
        ("", "'' is no version"),
    ],
)
def test_what_means_no_release_is_one_line_that_helps(expression: str, told: str) -> None:
    with pytest.raises(UserError) as error:
        releases.chosen("up", expression)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_without_an_index_only_single_releases_can_be_meant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pins, "versions", lambda *_, **__: [])
    with pytest.raises(Inconclusive, match="is there a network"):
        releases.chosen("up", "minor")
    with pytest.raises(Inconclusive):
        releases.chosen("up", "4.34.0,4.36:")
    assert releases.chosen("up", "4.36.2, 4.34.0") == ["4.34.0", "4.36.2"]
