"""The releases that an expression selects."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.releases import releases
from harness.system.errors import Inconclusive, UserError
from tests.index import Handler, file, no_network, page, served
from tests.sandbox import refused

__all__ = ["no_network", "served"]

KNOWN = ["5.1.0", "5.0.1", "5.0.0", "4.36.10", "4.36.2", "4.35.0", "4.34.1", "4.34.0", "4.9.0"]


@pytest.fixture(autouse=True)
def index(served: type[Handler]) -> type[Handler]:
    """An index with these releases, a pre-release and a yanked one."""
    files = [file(f"up-{version}.tar.gz") for version in ["5.2.0rc1", *KNOWN]]
    served.pages["up"] = page(*files, file("up-4.36.0.tar.gz", None, "it was broken"))
    return served


@pytest.mark.parametrize(
    ("expression", "selected"),
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
        ("all", KNOWN[::-1]),
        (":", KNOWN[::-1]),
    ],
)
def test_an_expression_selects_these_releases_oldest_first(
    expression: str, selected: list[str]
) -> None:
    assert releases.chosen("up", expression) == selected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("4.37:4.99", "pins.up=4.37:4.99: no release of up is in this range: releases go from 4.9"),
        ("5.0:4.34", "no release of up is in this range"),
        ("4.36.7", "no release up==4.36.7: the nearest are 4.36.2 and 4.36.10"),
        ("4.34:4.36,4.36.0", "up==4.36.0 was yanked: the nearest are 4.35.0 and 4.36.2"),
        ("4.34:4.36:major", "'4.36:major' is not a version. Choices: a version (0.15.4), a range"),
        ("latest", "'latest' is not a version. Choices:"),
        ("", "'' is not a version"),
    ],
)
def test_an_expression_that_selects_nothing_is_one_line_that_helps(
    expression: str, message: str
) -> None:
    with pytest.raises(UserError) as error:
        releases.chosen("up", expression)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("no_network")
def test_without_an_index_only_single_releases_can_be_selected() -> None:
    for expression in ("minor", "4.34.0,4.36:"):
        with pytest.raises(Inconclusive, match="the package index does not respond"):
            releases.chosen("up", expression)
    assert releases.chosen("up", "4.36.2, 4.34.0") == ["4.34.0", "4.36.2"]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("expression", ["4.36:4.38", "all"])
def test_local_wheels_are_not_taken_for_all_releases(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    expression: str,
) -> None:
    (tmp_path / "transformers-1.2.3-py3-none-any.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    err = refused(
        capsys, ["matrix", "scenario=rope_zero_init", f"pins.transformers={expression}"], code=3
    )
    assert err.startswith("harness: the package index does not respond")


def test_offline_a_single_release_is_accepted_without_a_request(
    index: type[Handler], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")
    expected = ["4.36.2", "4.36.3", "5.0.0", "5.1"]
    assert releases.chosen("up", "4.36.3.0, v4.36.2, 5.0.0, 5.1") == expected
    with pytest.raises(Inconclusive, match="UV_OFFLINE"):
        releases.chosen("up", "4.36:")
    assert index.requests == []


def test_a_command_reads_the_index_once(index: type[Handler]) -> None:
    for expression in ("4.36:", "4.34:4.35", "5.1.0"):
        releases.chosen("up", expression)
    with pytest.raises(UserError):
        releases.chosen("up", "4.36.0")
    assert index.requests == ["/simple/up/"]
