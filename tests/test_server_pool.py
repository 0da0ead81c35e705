"""Processes that have imported once, with stand-ins for torch and upstream: what they serve, and
when they had better not."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.trial.processes import TOKEN, bear, end_all, hearing, members, new_token
from harness.trial.server_pool import Pool
from harness.trial.servers import ForkedLaunch, Wanted
from tests.sandbox import PATIENCE, within
from tests.stand_in import compiled, stand_in, wanted

TELL = "import json, os, sys\njson.dump({told}, open('told.json', 'w'))\n"
"""A trial that says something of the process it finds itself in."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "overlay" / "site-packages"
    stand_in(site)
    return site


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


def trial(pool: Pool, want: Wanted, folder: Path, script: str) -> ForkedLaunch:
    folder.mkdir()
    (folder / "script.py").write_text(script)
    environment = {**want.environment, TOKEN: new_token(), "EXTRA": "1"}
    with (folder / "torchrun.log").open("w") as log:
        return pool.server(want).start(folder, environment, [], log)


def told(folder: Path) -> Any:
    return json.loads((folder / "told.json").read_text())


def test_trials_share_what_was_imported_and_nothing_else(
    pool: Pool, site: Path, tmp_path: Path
) -> None:
    (site / "up.py").write_text("import os\nIMPORTED_BY = os.getpid()\nprint('hello of up')\n")
    facts = "[sys.modules['up'].IMPORTED_BY, os.getsid(0), os.getcwd(), os.environ['EXTRA']]"
    script = TELL.replace("{told}", facts)
    want = wanted(site, "up")
    both = [trial(pool, want, tmp_path / name, script) for name in "ab"]
    assert [each.wait(PATIENCE) for each in both] == [0, 0]
    by, session, where, extra = told(tmp_path / "a")
    by_too, session_too, where_too, _ = told(tmp_path / "b")
    assert by == by_too
    assert session != session_too
    assert (where, where_too, extra) == (str(tmp_path / "a"), str(tmp_path / "b"), "1")
    assert "hello of up" in (tmp_path / "a" / "torchrun.log").read_text()
    assert set(both[0].seconds) == {"torch", "upstream"}


@pytest.mark.parametrize("changed", [False, True])
def test_an_overlay_shares_torch_with_another_if_it_has_the_same(
    pool: Pool, site: Path, tmp_path: Path, changed: bool
) -> None:
    other = tmp_path / "other" / "site-packages"
    (site / "torch" / "__init__.py").write_text("import os\nIMPORTED_BY = os.getpid()\n")
    (site / "up.py").write_text("")
    compiled(site)
    shutil.copytree(site, other)
    if changed:
        (other / "torch" / "distributed" / "__init__.py").write_text("# another\n")
    facts = "[sys.modules['torch'].IMPORTED_BY, sys.modules['torch'].__file__, sys.path]"
    script = TELL.replace("{told}", facts)
    for name, each in (("first", site), ("second", other)):
        ran = trial(pool, wanted(each, "up"), tmp_path / name, script)
        assert ran.wait(PATIENCE) == 0
        assert set(ran.seconds) == {"torch", "upstream"}
    first, second = told(tmp_path / "first"), told(tmp_path / "second")
    assert (first[0] != second[0]) is changed
    assert second[1] == str(other / "torch" / "__init__.py")
    assert str(other) in second[2]
    assert str(site) not in second[2]


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,)).start()"


@pytest.mark.parametrize(
    ("imported", "why"),
    [
        (
            THREAD,
            "threads were started (forkserver) by an import: each rank has to do it by itself",
        ),
        ("raise ImportError('not here')", "ImportError: not here"),
        ("import os; os._exit(0)", ""),
    ],
)
def test_what_must_not_be_forked_after_its_import_is_left_to_the_ranks(
    pool: Pool, site: Path, tmp_path: Path, imported: str, why: str
) -> None:
    (site / "up.py").write_text(imported)
    script = TELL.replace("{told}", "'up' in sys.modules")
    ran = trial(pool, wanted(site, "up"), tmp_path / "trial", script)
    assert ran.wait(PATIENCE) == 0
    assert told(tmp_path / "trial") is False
    assert set(ran.seconds) == {"torch"}
    assert why in (tmp_path / "trial" / "torchrun.log").read_text()


def test_how_a_trial_ends_is_reported(pool: Pool, site: Path, tmp_path: Path) -> None:
    ends = {7: "sys.exit(7)", 1: "raise ValueError", -9: "os.kill(os.getpid(), 9)", 0: "pass"}
    for code, end in ends.items():
        folder = tmp_path / str(code)
        ran = trial(pool, wanted(site), folder, f"import os, sys\n{end}\n")
        assert ran.wait(PATIENCE) == code
        assert ran.poll() == code
        assert ("ValueError" in (folder / "torchrun.log").read_text()) is (code == 1)


SLEEP = "import time\nopen('begun', 'w').close()\ntime.sleep(1e6)\n"


def test_with_its_server_a_trial_ends_and_is_told_so(
    pool: Pool, site: Path, tmp_path: Path
) -> None:
    ran = trial(pool, wanted(site), tmp_path / "trial", SLEEP)
    within(PATIENCE, (tmp_path / "trial" / "begun").exists, "the trial")
    assert ran.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        ran.wait(0)
    processes = psutil.Process(ran.pid).children(recursive=True)
    ran.server.kill()
    assert ran.wait(PATIENCE) == -signal.SIGKILL
    assert psutil.wait_procs(processes, PATIENCE)[1] == []
    again = trial(pool, wanted(site), tmp_path / "again", "")
    assert again.server is not ran.server
    assert again.wait(PATIENCE) == 0


def test_a_trial_that_its_server_never_came_to_is_given_up(
    pool: Pool, site: Path, tmp_path: Path
) -> None:
    (site / "up.py").write_text("import time\ntime.sleep(1e6)\n")
    ran = trial(pool, wanted(site, "up"), tmp_path / "trial", SLEEP)
    ran.give_up()
    assert ran.wait(PATIENCE) == -signal.SIGKILL
    assert not ran.server.lives


def test_a_trial_is_found_by_its_mark_and_so_is_what_it_starts(
    pool: Pool, site: Path, tmp_path: Path
) -> None:
    starts = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    token, folder = new_token(), tmp_path / "trial"
    folder.mkdir()
    (folder / "script.py").write_text(starts + SLEEP)
    want = wanted(site)
    with (folder / "torchrun.log").open("w") as log:
        ran = pool.server(want).start(folder, {**want.environment, TOKEN: token}, [], log)
    within(PATIENCE, (folder / "begun").exists, "the trial")
    within(PATIENCE, lambda: "sleep" in [p.name() for p in members(token)], "what it starts")
    assert sorted(p.name() for p in members(token)) == ["keeper", "sleep", "torchrun"]
    assert ran.poll() is None
    server = psutil.Process(psutil.Process(ran.pid).ppid())
    assert server.name() == "forkserver"  # which is no member
    assert end_all(token) == ()
    assert members(token) == []
    assert ran.wait(PATIENCE) == -signal.SIGKILL
    assert ran.server.lives


def test_a_mark_is_put_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "somebody's")
    with pytest.raises(ValueError, match="was set already"):
        bear(new_token())


def test_only_who_has_a_handler_hears_a_signal() -> None:
    token = new_token()
    deaf = "import time; print(flush=True); time.sleep(1000)"
    hears = f"import signal; signal.signal(signal.SIGUSR1, print); {deaf}"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, TOKEN: token}, stdout=subprocess.PIPE
        )
        for code in (deaf, hears)
    ]
    try:
        for process in started:
            assert process.stdout
            process.stdout.readline()
        assert [p.pid for p in hearing(token, signal.SIGUSR1)] == [started[1].pid]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_pool_keeps_the_servers_that_were_used_last(site: Path) -> None:
    with Pool(most=2) as pool:
        wants = [wanted(site, NUMBER=str(n)) for n in range(3)]
        first, second = pool.server(wants[0]), pool.server(wants[1])
        assert pool.server(wants[0]) is first
        third = pool.server(wants[2])
        assert (first.lives, second.lives, third.lives) == (True, False, True)
    assert (first.lives, third.lives) == (False, False)


def test_a_pool_keeps_a_server_whose_trial_runs(site: Path, tmp_path: Path) -> None:
    with Pool(most=1) as pool:
        ran = trial(pool, wanted(site), tmp_path / "trial", SLEEP)
        within(PATIENCE, (tmp_path / "trial" / "begun").exists, "the trial")
        pool.server(wanted(site, NUMBER="2"))
        assert ran.poll() is None
    assert ran.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_is_gone_without_a_word_is_missed(
    pool: Pool, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr("harness.trial.servers.DESERTED", 0.5)
    one = "import os, time\nif not os.fork():\n    time.sleep(1e6)\n"
    ran = trial(pool, wanted(site), tmp_path / "trial", one + SLEEP)
    within(PATIENCE, (tmp_path / "trial" / "begun").exists, "the trial")
    ran.poll()
    if ranks == 1:
        assert not any(_looked(ran, ranks) for _ in range(3))
    else:
        within(PATIENCE, lambda: _looked(ran, ranks), "the end of its patience")


def _looked(ran: ForkedLaunch, ranks: int) -> bool:
    ran._next_look = 0
    return ran.deserted(ranks)


def test_a_harness_that_is_killed_takes_its_servers_and_trials_along(
    site: Path, tmp_path: Path
) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "script.py").write_text(SLEEP)
    token = new_token()
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from tests.test_server_pool import wanted, Pool, TOKEN
want, folder = wanted(Path({str(site)!r})), Path({str(tmp_path / "trial")!r})
marked = {{**want.environment, TOKEN: {token!r}}}
with Pool() as pool, (folder / "torchrun.log").open("w") as log:
    pool.server(want).start(folder, marked, [], log).wait(1e6)
"""
    harness = subprocess.Popen([sys.executable, "-c", code])
    within(PATIENCE, (tmp_path / "trial" / "begun").exists, "the trial")
    below = psutil.Process(harness.pid).children(recursive=True)
    assert len(below) >= 4  # the server, what has imported upstream, the keeper, the agent
    assert members(token)
    harness.kill()
    harness.wait()
    assert psutil.wait_procs(below, PATIENCE)[1] == []
    assert members(token) == []
