"""The fixtures that train under guard, and run its command."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.guard import trainer
from tests.guard.commands import TRAIN
from tests.guard.trainer import Trainer
from tests.sandbox import Sandbox


@pytest.fixture(scope="session")
def server() -> Iterator[subprocess.Popen[str]]:
    with trainer.server() as process:
        yield process


@pytest.fixture
def under_guard(server: subprocess.Popen[str], tmp_path: Path) -> Trainer:
    """Runs a training on forked ranks under guard: ``under_guard("ddp clip")``."""
    return Trainer(server, tmp_path)


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    """Where guarded commands run. One for all tests, as the file with the bugs of the catalogue is
    written once."""
    folder = tmp_path_factory.mktemp("a folder with spaces")
    sandbox = Sandbox.under(folder, folder / "cache")
    (sandbox.cwd / "train.py").write_text(TRAIN)
    yield sandbox
    sandbox.end()
