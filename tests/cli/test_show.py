"""The command show prints what changed between the two releases that show a bug."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs import catalog, pins
from harness.bugs.api.spec import Defect
from harness.cli import show
from harness.releases import index, overlay, releases

FILE = "accelerate/data_loader.py"


@pytest.fixture
def two_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overlays of two releases with a made-up file; 1.15.0 does not have it."""
    texts = {"0.29.3": "generator = None\n", "0.30.0": "generator = synchronised\n"}

    @contextmanager
    def borrowed(
        stack: pins.Stack, defects: tuple[Defect, ...], cache: Path
    ) -> Iterator[overlay.Overlay]:
        site = tmp_path / stack.pins["accelerate"]
        if stack.pins["accelerate"] in texts:
            (site / FILE).parent.mkdir(parents=True, exist_ok=True)
            (site / FILE).write_text(texts[stack.pins["accelerate"]])
        yield overlay.Overlay("key", site, "", "")

    monkeypatch.setattr(overlay, "borrow", borrowed)
    monkeypatch.setattr(releases, "released", lambda *_: "2024-05-10")


@pytest.mark.usefixtures("two_releases")
def test_what_changed_in_the_file_with_the_bug_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "sampler_shards"]) == 0
    out = capsys.readouterr().out
    assert "what changed from accelerate 0.29.3 to accelerate 0.30.0" in out
    assert f"--- buggy/{FILE}" in out
    assert "-generator = None\n+generator = synchronised\n" in out


@pytest.mark.usefixtures("two_releases")
def test_a_file_that_one_release_lacks_is_all_new(tmp_path: Path) -> None:
    chosen = {"buggy": {"accelerate": "1.15.0"}, "fixed": {"accelerate": "0.30.0"}}
    (text,) = show.changes(catalog.scenario("sampler_shards"), chosen, tmp_path)
    assert "+generator = synchronised" in text
    assert "-generator" not in text


@pytest.mark.usefixtures("two_releases")
def test_a_command_that_makes_overlays_says_what_it_waits_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(index, "SILENCE", 0.01)
    borrow = overlay.borrow

    @contextmanager
    def slow(*arguments: Any) -> Iterator[overlay.Overlay]:
        time.sleep(0.1)
        with borrow(*arguments) as borrowed:
            yield borrowed

    monkeypatch.setattr(overlay, "borrow", slow)
    assert main(["show", "sampler_shards"]) == 0
    assert "waiting for the overlay of accelerate 0.29.3\n" in capsys.readouterr().err
