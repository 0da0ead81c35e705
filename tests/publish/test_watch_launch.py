"""Real nightlies, end to end: a local package index, and runs of upstream's releases."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.__main__ import INTERRUPTED
from harness.publish.history import reading, writing
from harness.publish.history_rows import NightlyKind
from harness.system.machine import cache_folder
from tests.index import Handler, address, file, page, serving
from tests.nightly_world import NO, YES, result
from tests.overlays import lent
from tests.sandbox import Sandbox, ended, until

SCENARIO, PACKAGE = "sampler_shards", "accelerate"
CLEAN, AFFECTED = "0.24.1", "0.29.3"
# The local index lacks the releases of the recorded results, which `confirm` would run again.
WATCH: tuple[str, ...] = ("watch", f"scenario={SCENARIO}", "lane=cpu", "--confirm", "0")
WATCH += ("--history", "../nights.jsonl")


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox with the user's cache, to which it adds the overlays."""
    with lent(SCENARIO, "buggy", "fixed"):
        sandbox = Sandbox.under(tmp_path, cache_folder())
        yield sandbox
        sandbox.end()


@pytest.fixture
def index() -> Iterator[dict[str, str]]:
    """An index of two releases, as the environment that names it. Their days are made up: no
    dependency has to be resolved for the past."""
    with serving() as server:
        Handler.pages[PACKAGE] = page(
            file(f"{PACKAGE}-{CLEAN}.tar.gz", "2024-04-10T00:00:00"),
            file(f"{PACKAGE}-{AFFECTED}.tar.gz", "2024-05-16T00:00:00"),
        )
        yield {"UV_DEFAULT_INDEX": address(server), "NO_PROXY": "127.0.0.1", "UV_OFFLINE": "0"}


@pytest.mark.launch
@pytest.mark.slow
def test_a_nightly_of_real_runs_reports_when_a_bug_appeared(
    sandbox: Sandbox, index: dict[str, str]
) -> None:
    file, timestamp = sandbox.cwd.parent / "nights.jsonl", "2024-05-15T03:00:00Z"
    with writing(file) as history:  # the nightly before: no recorded result is added to it
        before = history.start(NightlyKind.NIGHTLY, "2024-05-15", timestamp, {})
        history.add_results([result(CLEAN, NO, before.id, SCENARIO, PACKAGE)])
        history.finish(before, timestamp)
    tonight = sandbox.run(*WATCH, "--summary", "../night.md", **index)
    assert tonight.code == 1, tonight
    assert "accelerate 0.29.3 (2024-05-16) is affected by sampler_shards; 0.24.1 was" in tonight.out
    assert "1 scenario of ours (1 reproduced)" in tonight.out
    with reading(file) as history:
        entries = history.newest_results(SCENARIO).items()
        assert {key[1]: r.cell.status for key, r in entries} == {CLEAN: NO, AFFECTED: YES}
        (verdict,) = history.verdicts()
        assert verdict.run is not None
        assert (Path(verdict.run) / "verdict.json").is_file()
    assert sandbox.living() == []


@pytest.mark.launch
@pytest.mark.slow
def test_a_nightly_ends_at_sigterm_and_the_next_one_continues_it(
    sandbox: Sandbox, index: dict[str, str]
) -> None:
    file = sandbox.cwd.parent / "nights.jsonl"
    process = sandbox.start(*WATCH, **index)
    until(lambda: any(sandbox.runs.glob("*/buggy/rank_0.jsonl.part")), "a trial", process)
    process.send_signal(signal.SIGTERM)
    ending = ended(process)
    assert ending.code == INTERRUPTED
    assert ending.err.splitlines()[-1].startswith("harness: interrupted")
    assert sandbox.living() == []
    with reading(file) as history:
        (tonight,) = (night for night in history.nightlies() if night.kind is NightlyKind.NIGHTLY)
        assert tonight.ended is None
    assert sandbox.run(*WATCH, **index).code == 0
    with reading(file) as history:
        nights = [n for n in history.nightlies() if n.kind is NightlyKind.NIGHTLY and n.ended]
        assert [night.id for night in nights] == [tonight.id]
