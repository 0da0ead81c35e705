"""Real nights, end to end: an index of our own over HTTP, and upstream's releases really run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import catalog
from harness.__main__ import INTERRUPTED
from harness.machine import cache_folder
from harness.sweep.history import reading
from harness.sweep.history_rows import Kind
from harness.upstream import overlay, resolution
from tests.index import Handler, address, file, page, serving
from tests.nightly_world import NO, YES
from tests.overlays import lent
from tests.sandbox import Sandbox, ended, until

SCENARIO, PACKAGE = "sampler_shards", "accelerate"
CLEAN, AFFECTED = "0.24.1", "0.29.3"
WATCH = ("watch", f"scenario={SCENARIO}", "launch=cpu", "--history", "../nights.sqlite")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Sandbox]:
    """With the user's cache, which has the overlays after this."""
    scenario, cache = catalog.scenario(SCENARIO), cache_folder()
    overlay.make(resolution.stack(scenario, {PACKAGE: CLEAN}, cache), (), cache)
    with lent(SCENARIO, "buggy", "fixed"):
        place = Sandbox.under(tmp_path, cache)
        yield place
        place.end()


@pytest.fixture
def index() -> Iterator[dict[str, str]]:
    """An index of two releases, as the environment that names it. Their days are made up, so that
    no dependency has to be resolved for the past."""
    with serving() as server:
        Handler.pages[PACKAGE] = page(
            file(f"{PACKAGE}-{CLEAN}.tar.gz", "2024-04-10T00:00:00"),
            file(f"{PACKAGE}-{AFFECTED}.tar.gz", "2024-05-16T00:00:00"),
        )
        yield {"UV_DEFAULT_INDEX": address(server), "NO_PROXY": "127.0.0.1", "UV_OFFLINE": "0"}


@pytest.mark.launch
@pytest.mark.slow
def test_nights_of_real_runs_say_when_a_bug_appeared(place: Sandbox, index: dict[str, str]) -> None:
    replay = ("--as-of", "2024-05-15:2024-05-22:7", "--summary", "../night.md")
    done = place.run(*WATCH, *replay, **index)
    assert done.code == 1, done
    assert "accelerate 0.29.3 (2024-05-16) has sampler_shards, which 0.24.1 had not" in done.out
    tonight = place.run(*WATCH, **index)
    assert tonight.code == 0, tonight
    assert "1 scenario of ours (1 reproduced)" in tonight.out
    with reading(place.cwd.parent / "nights.sqlite") as history:
        assert [(n.kind, n.day) for n in history.nightlies()][:2] == [
            (Kind.REPLAY, "2024-05-15"),
            (Kind.REPLAY, "2024-05-22"),
        ]
        found = {version: asked.cell for (_, version), asked in history.known(SCENARIO).items()}
        assert {version: cell.status for version, cell in found.items()} == {
            CLEAN: NO,
            AFFECTED: YES,
        }
        (own,) = history.verdicts()
        assert own.run is not None
        assert (Path(own.run) / "verdict.json").is_file()
    assert place.living() == []


@pytest.mark.launch
@pytest.mark.slow
def test_a_night_that_is_told_to_end_ends_and_the_next_goes_on(
    place: Sandbox, index: dict[str, str]
) -> None:
    history = place.cwd.parent / "nights.sqlite"
    process = place.start(*WATCH, **index)
    until(lambda: any(place.runs.glob("*/buggy/rank_0.jsonl.part")), "a trial", process)
    process.send_signal(signal.SIGTERM)
    done = ended(process)
    assert done.code == INTERRUPTED
    assert done.complaint.startswith("interrupted")
    assert place.living() == []
    with reading(history) as kept:
        (tonight,) = (night for night in kept.nightlies() if night.kind is Kind.NIGHTLY)
        assert tonight.ended is None
    assert place.run(*WATCH, **index).code == 0
    with reading(history) as kept:
        assert [n.id for n in kept.nightlies() if n.kind is Kind.NIGHTLY and n.ended] == [
            tonight.id
        ]
