"""An index with packages whose needs are known, and what a stack has of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from harness.check import environment
from harness.releases import uv
from tests.index import Handler, page, served
from tests.index import file as file_of

__all__ = ["served"]


def publish(served: type[Handler], name: str, version: str, *needs: str, day: str) -> None:
    """Add a wheel to the index: its metadata are all that a resolver reads."""
    wheel = f"{name}-{version}-py3-none-any.whl"
    files = served.pages.get(name, page())["files"]
    entry = file_of(wheel, f"{day}T00:00:00") | {"core-metadata": True}
    served.pages[name] = page(*files, entry) | {"name": name}
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    text = "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs), "", ""])
    served.pages[f"{name}/{wheel}.metadata"] = text


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What uv gets each time that it is started. Its errors are hidden: no answer rests on them."""
    inputs, execute = list[str](), uv.execute

    def silent(command: Sequence[str], stdin: str, *arguments: Any) -> CompletedProcess[str]:
        inputs.append(stdin)
        process = execute(command, stdin, *arguments)
        return CompletedProcess(process.args, process.returncode, process.stdout, "refused")

    monkeypatch.setattr(uv, "execute", silent)
    return inputs


@pytest.fixture
def published(served: type[Handler], cache: Path, starts: list[str]) -> type[Handler]:
    publish(served, "up", "1.0", "down<2", day="2024-01-01")
    publish(served, "up", "2.0", "down<3", day="2024-06-01")
    for version, day in (("1.5", "2023-12-01"), ("2.5", "2024-05-01"), ("3.0", "2024-07-01")):
        publish(served, "down", version, day=day)
    served.pages["source"] = page(file_of("source-1.0.tar.gz", "2023-01-01T00:00:00"))
    return served


def stack_of(folder: Path, text: str, *names: str, day: str = "") -> environment.Environment:
    """The environment of a requirements file with this text; without names, of up and down."""
    file = folder / "requirements.txt"
    file.write_text(text)
    return environment.of_files([str(file)], names or ("up", "down"), day)


def releases(stack: environment.Environment) -> dict[str, str]:
    return {name: package.version for name, package in stack.packages.items()}
