"""Servers, with stand-ins for torch and upstream: what they share, and must not import."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.run.server_pool import ForkedLaunch, Pool, Wanted
from harness.system.launch_token import TOKEN, new_token, set_token
from harness.system.processes import end_all, handling, members
from tests.sandbox import PATIENCE, within
from tests.stand_in import stand_in, wanted

DUMP = "import json, os, sys\njson.dump({value}, open('dump.json', 'w'))\n"
"""A launch that writes down facts about its process."""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "overlay" / "site-packages"
    stand_in(site)
    return site


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


def launch(
    pool: Pool, want: Wanted, folder: Path, script: str, token: str | None = None
) -> ForkedLaunch:
    folder.mkdir()
    (folder / "script.py").write_text(script)
    environment = {**want.environment, TOKEN: token or new_token(), "EXTRA": "1"}
    with (folder / "torchrun.log").open("w") as log:
        return pool.server(want).start(folder, environment, [], log)


def sleeping(
    pool: Pool, site: Path, folder: Path, before: str = "", token: str = ""
) -> ForkedLaunch:
    """A launch that has begun and never ends."""
    fork = launch(pool, wanted(site), folder, before + SLEEP, token)
    within(PATIENCE, (folder / "begun").exists, "the launch")
    return fork


SLEEP = "import time\nopen('begun', 'w').close()\ntime.sleep(1e6)\n"


def dumped(folder: Path) -> Any:
    return json.loads((folder / "dump.json").read_text())


def test_launches_share_the_imports_and_nothing_else(
    pool: Pool, site: Path, tmp_path: Path
) -> None:
    (site / "up.py").write_text("import os\nIMPORTED_BY = os.getpid()\nprint('hello of up')\n")
    facts = "[sys.modules['up'].IMPORTED_BY, os.getsid(0), os.getcwd(), os.environ['EXTRA']]"
    script = DUMP.replace("{value}", facts)
    want = wanted(site, "up")
    both = [launch(pool, want, tmp_path / name, script) for name in "ab"]
    assert [each.wait(PATIENCE) for each in both] == [0, 0]
    by, session, where, extra = dumped(tmp_path / "a")
    by_too, session_too, where_too, _ = dumped(tmp_path / "b")
    assert by == by_too
    assert session != session_too
    assert (where, where_too, extra) == (str(tmp_path / "a"), str(tmp_path / "b"), "1")
    assert "hello of up" in (tmp_path / "a" / "torchrun.log").read_text()
    assert set(both[0].seconds) == {"torch", "upstream"}


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1e6,)).start()"


@pytest.mark.parametrize(
    ("imported", "why"),
    [
        (THREAD, "an import started threads (forkserver): each rank has to import by itself"),
        ("raise ImportError('not here')", "ImportError: not here"),
        ("import os; os._exit(0)", ""),
    ],
)
def test_an_import_that_prevents_forks_is_left_to_the_ranks(
    pool: Pool, site: Path, tmp_path: Path, imported: str, why: str
) -> None:
    (site / "up.py").write_text(imported)
    script = DUMP.replace("{value}", "'up' in sys.modules")
    fork = launch(pool, wanted(site, "up"), tmp_path / "trial", script)
    assert fork.wait(PATIENCE) == 0
    assert dumped(tmp_path / "trial") is False
    assert set(fork.seconds) == {"torch"}
    assert why in (tmp_path / "trial" / "torchrun.log").read_text()


def test_the_exit_code_of_a_launch_is_reported(pool: Pool, site: Path, tmp_path: Path) -> None:
    ends = {7: "sys.exit(7)", 1: "raise ValueError", -9: "os.kill(os.getpid(), 9)", 0: "pass"}
    for code, end in ends.items():
        folder = tmp_path / str(code)
        fork = launch(pool, wanted(site), folder, f"import os, sys\n{end}\n")
        assert (fork.wait(PATIENCE), fork.poll()) == (code, code)
        assert ("ValueError" in (folder / "torchrun.log").read_text()) is (code == 1)


def test_a_launch_ends_with_its_server(pool: Pool, site: Path, tmp_path: Path) -> None:
    fork = sleeping(pool, site, tmp_path / "trial")
    assert fork.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0)
    processes = psutil.Process(fork.pid).children(recursive=True)
    fork.server.kill()
    assert fork.wait(PATIENCE) == -signal.SIGKILL
    assert psutil.wait_procs(processes, PATIENCE)[1] == []
    again = launch(pool, wanted(site), tmp_path / "again", "")
    assert again.server is not fork.server
    assert again.wait(PATIENCE) == 0


def test_a_launch_that_has_not_started_can_be_cancelled(
    pool: Pool, site: Path, tmp_path: Path
) -> None:
    (site / "up.py").write_text("import time\ntime.sleep(1e6)\n")
    fork = launch(pool, wanted(site, "up"), tmp_path / "trial", SLEEP)
    fork.cancel()
    assert fork.wait(PATIENCE) == -signal.SIGKILL
    assert not fork.server.alive


def test_a_launch_and_what_it_starts_are_found_by_their_token(
    pool: Pool, site: Path, tmp_path: Path
) -> None:
    starts = "import subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    token = new_token()
    fork = sleeping(pool, site, tmp_path / "trial", starts, token)
    within(PATIENCE, lambda: "sleep" in [p.name() for p in members(token)], "its child")
    assert sorted(p.name() for p in members(token)) == ["keeper", "sleep", "torchrun"]
    assert fork.poll() is None
    server = psutil.Process(psutil.Process(fork.pid).ppid())
    assert server.name() == "forkserver"  # it has no token
    assert end_all(token) == ()
    assert members(token) == []
    assert fork.wait(PATIENCE) == -signal.SIGKILL
    assert fork.server.alive


def test_a_token_is_set_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "another")
    with pytest.raises(ValueError, match="is already set"):
        set_token(new_token())


def test_only_processes_with_a_handler_are_signalled() -> None:
    token = new_token()
    plain = "import time; print(flush=True); time.sleep(1000)"
    handles = f"import signal; signal.signal(signal.SIGUSR1, print); {plain}"
    environment = os.environ | {TOKEN: token}
    started = [
        subprocess.Popen([sys.executable, "-c", c], env=environment, stdout=subprocess.PIPE)
        for c in (plain, handles)
    ]
    try:
        for process in started:
            assert process.stdout
            process.stdout.readline()
        assert [p.pid for p in handling(members(token), signal.SIGUSR1)] == [started[1].pid]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_pool_keeps_the_most_recently_used_servers(site: Path) -> None:
    with Pool(most=2) as pool:
        wants = [wanted(site, NUMBER=str(n)) for n in range(3)]
        recent, idle = pool.server(wants[0]), pool.server(wants[1])
        assert pool.server(wants[0]) is recent
        newest = pool.server(wants[2])
        assert (recent.alive, idle.alive, newest.alive) == (True, False, True)
    assert (recent.alive, newest.alive) == (False, False)


def test_a_pool_keeps_a_server_whose_launch_runs(site: Path, tmp_path: Path) -> None:
    with Pool(most=1) as pool:
        fork = sleeping(pool, site, tmp_path / "trial")
        pool.server(wanted(site, NUMBER="2"))
        assert fork.poll() is None
    assert fork.wait(PATIENCE) == -signal.SIGKILL


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_that_disappears_is_noticed(
    pool: Pool, site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    monkeypatch.setattr("harness.run.server_pool.LOST_AFTER", 0.5)
    script = "import os, time\nif not os.fork():\n    time.sleep(1e6)\n"
    fork = sleeping(pool, site, tmp_path / "trial", script)
    fork.poll()
    if ranks == 1:
        assert not any(_checked(fork, ranks) for _ in range(3))
    else:
        within(PATIENCE, lambda: _checked(fork, ranks), "the lost rank")


def _checked(fork: ForkedLaunch, ranks: int) -> bool:
    fork._next_check = 0
    return fork.lost_a_rank(ranks)


def test_servers_and_launches_end_with_a_harness_that_is_killed(site: Path, tmp_path: Path) -> None:
    (tmp_path / "trial").mkdir()
    (tmp_path / "trial" / "script.py").write_text(SLEEP)
    token = new_token()
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.run.test_server_pool import wanted, Pool, TOKEN
want, folder = wanted(Path({str(site)!r})), Path({str(tmp_path / "trial")!r})
environment = {{**want.environment, TOKEN: {token!r}}}
with Pool() as pool, (folder / "torchrun.log").open("w") as log:
    pool.server(want).start(folder, environment, [], log).wait(1e6)
"""
    harness = subprocess.Popen([sys.executable, "-c", code])
    within(PATIENCE, (tmp_path / "trial" / "begun").exists, "the launch")
    below = psutil.Process(harness.pid).children(recursive=True)
    assert len(below) >= 4  # the servers, the keeper, the agent
    assert members(token)
    harness.kill()
    harness.wait()
    assert psutil.wait_procs(below, PATIENCE)[1] == []
    assert members(token) == []
