"""Real nightlies, end to end: a local package index, and runs of upstream's releases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs import result_file
from harness.publish.history import Nightly, reading, writing
from harness.system.machine import cache_folder
from tests.index import Handler, address, file, page, serving
from tests.nightly_world import NO, YES, result
from tests.overlays import lent
from tests.sandbox import Sandbox

SCENARIO, PACKAGE = "sampler_shards", "accelerate"
CLEAN, AFFECTED = "0.24.1", "0.29.3"
WATCH = ("watch", f"scenario={SCENARIO}", "lane=cpu", "--history", "../nights.jsonl")


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
    sandbox: Sandbox,
    index: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in index.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(sandbox.cwd)
    monkeypatch.setattr(result_file, "statuses", lambda _: [])  # all releases are new
    file, timestamp = sandbox.cwd.parent / "nights.jsonl", "2024-05-15T03:00:00Z"
    with writing(file) as history:
        night = Nightly("2024-05-15", timestamp, {}, timestamp)
        night.add_result(result(CLEAN, NO, SCENARIO, PACKAGE))
        history.append(night)
    assert main([*WATCH, f"runs={sandbox.runs}", "--summary", "../night.md"]) == 1
    out = capsys.readouterr().out
    assert "accelerate 0.29.3 (2024-05-16) is affected by sampler_shards; 0.24.1 was" in out
    assert "1 scenario of ours (1 reproduced)" in out
    nightly = reading(file).nightlies[-1]
    assert [(each.version, each.cell.status) for each in nightly.results] == [(AFFECTED, YES)]
    folder = nightly.ours[SCENARIO].folder
    assert folder
    assert (folder / "verdict.json").is_file()
