"""Requirements files of a package ``up``, whose releases a stand-in of the index has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from harness.check import requirements, resolver
from harness.check.formats import source_of
from harness.check.installed import Installed
from harness.check.source import read_file
from harness.system.errors import UserError
from tests.index import Handler, page, served
from tests.index import file as file_of

__all__ = ["served"]
KNOWN = ["4.39.0", "4.38.2", "4.37.2", "4.36.2"]


@pytest.fixture(autouse=True)
def known(served: type[Handler]) -> None:
    """An index with KNOWN releases, one for another Python, one yanked, and a pre-release."""
    python = "requires-python"
    served.pages["up"] = page(
        *(file_of(f"up-{version}.tar.gz") for version in KNOWN),
        file_of("up-4.40.0.tar.gz") | {python: ">=3.99"},
        file_of("up-4.41.0.tar.gz", None, "it was broken"),
        file_of("up-5.0.0rc1.tar.gz"),
        file_of("up-4.35.0.tar.gz") | {python: ">=3.*, nonsense"},
    )


def content_of(*files: Path) -> requirements.Requirements:
    """What files require."""
    return requirements.read([source_of(read_file(file)) for file in files])  # type: ignore[misc]


def required(file: Path, names: Iterable[str]) -> dict[str, str]:
    """The version that a file selects of each of these packages."""
    content = content_of(file)
    packages = {name: chosen(name, content) for name in names}
    return {name: package.version for name, package in packages.items() if package}


def chosen(name: str, content: requirements.Requirements) -> Installed | None:
    """The exact release, otherwise the newest that is allowed."""
    if exact := requirements.exact(name, content):
        return exact
    return resolver.newest(name, content)[0] if name in content.versions else None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "requirements.txt"


def check_refused(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(UserError, match=message) as caught:
        required(file, ["up"])
    assert "\n" not in str(caught.value)


def selected(*files: Path) -> Installed | None:
    return chosen("up", content_of(*files))
