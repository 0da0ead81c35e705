"""A pool of servers that all tests of probe share: each would import torch again, for 2 to 3 s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from harness.cli import probe
from harness.run.server_pool import Pool
from harness.training.probe.answers import Answers
from harness.training.probe.layouts import Settings
from harness.training.probe.prober import Prober
from harness.training.probe.target import target
from tests.probe.probing import SCRIPTS, Probing


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


@pytest.fixture
def probing(pool: Pool, tmp_path: Path) -> Probing:
    def probing(script: str, arguments: str | Sequence[str], settings: Settings) -> Answers:
        if "\n" in script:
            (tmp_path / "train.py").write_text(script)
            script = str(tmp_path / "train.py")
        words = arguments.split() if isinstance(arguments, str) else arguments
        return Prober(pool).probe(target([str(SCRIPTS / script), *words]), settings)

    return probing


@pytest.fixture
def command(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command ``probe`` takes its servers from the shared pool, and leaves them in it."""
    monkeypatch.setattr(probe, "Pool", lambda: nullcontext(pool))
