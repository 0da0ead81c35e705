"""How a launch ends, with a stand-in for torchrun: no torch, and faults at exact moments."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

import harness.run.launch as launching
from harness.rank.exits import Identity
from harness.run.server_pool import Pool
from harness.system.errors import Inconclusive
from tests.sandbox import PATIENCE, lives
from tests.stand_in import StandIn, settings, wanted
from tests.stand_in import stand_in as make_stand_in

OF = Identity("run", "bf16_clip", "buggy", "", 2)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("overlay") / "site-packages"
    make_stand_in(site)
    return site


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


@pytest.fixture(params=["warm", "cold"])
def stand_in(request: pytest.FixtureRequest, runs: Path, site: Path, pool: Pool) -> StandIn:
    runs.mkdir()
    warm = pool.server(wanted(site, HARNESS_RUNS="")) if request.param == "warm" else None
    return StandIn(runs, settings(site), OF, warm)


only_warm = pytest.mark.parametrize("stand_in", ["warm"], indirect=True)
"""For tests of what is read after a launch: warm and cold launches leave the same files."""

ERROR_FILE = """
import json, os, pathlib, sys, time
def error_file(rank, message, at):
    folder = pathlib.Path("elastic", "id", "attempt_0", str(rank))
    folder.mkdir(parents=True)
    text = {"message": {"message": message, "extraInfo": {"timestamp": str(int(at))}}}
    (folder / "error.json").write_text(json.dumps(text))
    os.utime(folder / "error.json", (at, at))
"""

ROOT_CAUSE = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_02:57:10
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 19965)
  error_file: <N/A>
"""


LOGGED = "E1122 05:28:20.674000 9459 torch/distributed/elastic/multiprocessing/api.py:836] "
TOO_MANY_FILES = "OSError: [Errno 24] Too many open files"
NO_SOCKET = "No socket (errno: 24 - Too many open files)."
NO_STORE = "torch.distributed.DistStoreError: Failed to init uv loop"
SIGNALLED = "torch.distributed.elastic.api.SignalException: Process 1 got signal: 15"


@only_warm
@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (TOO_MANY_FILES, TOO_MANY_FILES),
        (f"ValueError\n  File x\n{NO_STORE}\n", NO_STORE),
        (f"{LOGGED}a.RaisedException: \n{LOGGED}OSError: no\nKeyError: later", "OSError: no"),
        (f"[W1122 05:30:21.65 a.cpp:7] [c10d] {NO_SOCKET}", NO_SOCKET),
        (SIGNALLED, ""),
        ("no reason", ""),
    ],
)
def test_the_reason_of_a_failure_is_read_from_torchruns_log(
    log: str, reason: str, stand_in: StandIn
) -> None:
    ending = stand_in.launch(f"import sys\nprint({log!r})\nsys.exit(1)")
    assert (ending["reason"], ending["failure"]) == (reason, None)


def test_a_torch_that_cannot_be_imported_is_the_reason(
    runs: Path, tmp_path: Path, pool: Pool
) -> None:
    runs.mkdir()
    site = tmp_path / "site"
    make_stand_in(site)
    (site / "torch" / "__init__.py").write_text("raise ImportError('no libtorch.so')\n")
    launched = StandIn(runs, settings(site), OF, pool.server(wanted(site)))
    ended = launched.launch("")
    assert (ended["code"], ended["reason"]) == (-9, "ImportError: no libtorch.so")


@only_warm
def test_a_low_limit_of_open_files_is_part_of_the_reason(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (24, 24))
    ending = stand_in.launch('import sys\nprint("OSError: Failed to init uv loop")\nsys.exit(1)')
    assert ending["reason"].endswith("uv loop; a process may open 24 files here (ulimit -n)")


CUT_OFF = 'open("elastic/id/attempt_0/1/error.json", "w").close()'
KILLED, ENDED = ROOT_CAUSE.format(code=-9), ROOT_CAUSE.format(code=-15)
LEFT = f"{LOGGED}{TOO_MANY_FILES}\n{ROOT_CAUSE.format(code=1)}"
VALUE_ERROR = "ValueError: wrong"
RESET = 'error_file(0, "Connection reset by peer", 1000)'
ONE = f'error_file(0, "{VALUE_ERROR}", 1000)'
TWO = f'error_file(0, "closed by peer", 1000.5); error_file(1, "{VALUE_ERROR}", 1000.2)'


@only_warm
@pytest.mark.parametrize(
    ("errors", "log", "rank", "message"),
    [
        (RESET, KILLED, 1, "was ended by SIGKILL"),
        (ONE, ENDED, 0, VALUE_ERROR),
        ("", LEFT, 1, f"left with exit code 1: {TOO_MANY_FILES}"),
        (TWO, "", 1, VALUE_ERROR),
        (f'error_file(1, "", 1000); {CUT_OFF}', "", 1, "its error file is cut off"),
    ],
    ids=[
        "a killed rank, before its neighbour's error",
        "a rank with an error, before one that torchrun ended",
        "a rank without an error file, with the reason in torchrun's log",
        "the earlier of two errors within one second",
        "a rank whose error file is cut off",
    ],
)
def test_the_rank_that_failed_first_is_named(
    stand_in: StandIn, errors: str, log: str, rank: int, message: str
) -> None:
    ending = stand_in.launch(f"{ERROR_FILE}{errors}\nprint({log!r})\nsys.exit(1)")
    assert ending["code"] == 1
    assert (ending["failure"]["rank"], ending["failure"]["message"]) == (rank, message)


@pytest.mark.slow
def test_a_second_ctrl_c_does_not_stop_the_clean_up(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one comes while the harness waits for a rank that cannot dump its stack."""
    script = """
import pathlib, subprocess, sys, time
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                        start_new_session=True)
pathlib.Path("rank.pid").write_text(f"{rank.pid}\\n")
pathlib.Path("stack_rank_0.txt").touch()
time.sleep(1000)
"""
    monkeypatch.setattr(launching, "STACK_SECONDS", 0.5)
    second = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))

    def tick() -> None:
        if (stand_in.launched / "stack_rank_0.txt").exists():
            second.start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stand_in.launch(script, tick)
    second.join()
    assert not lives(int((stand_in.launched / "rank.pid").read_text()))
    assert stand_in.exit()["interrupted"]


@pytest.mark.slow
def test_setting_the_clock_does_not_change_the_deadline(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = clock = time.time()

    def set_clock(step: float) -> None:
        nonlocal clock
        clock += step
        monkeypatch.setattr(time, "time", lambda: clock)

    ending = stand_in.launch("import time; time.sleep(0.2)", lambda: set_clock(1e6))
    assert clock > began
    assert (ending["code"], ending["timed_out"]) == (0, False)
    assert 0 < ending["seconds"] < PATIENCE
    stand_in.folder = stand_in.folder / "again"
    stand_in.folder.mkdir()
    began = clock
    ending = stand_in.launch("import time; time.sleep(1000)", lambda: set_clock(-1e6), timeout=0.2)
    assert clock < began
    assert ending["timed_out"]
    assert 0 < ending["seconds"] < PATIENCE


SLEEPER = """
import os, pathlib, time
pathlib.Path("{pid}").write_text(f"{os.getpid()}\\n")
time.sleep(1000)
"""


@pytest.fixture
def pid(tmp_path: Path) -> Path:
    """Where the sleeper writes its process id."""
    return tmp_path / "sleeper.pid"


def once_it_sleeps(pid: Path, act: Callable[[], None]) -> Callable[[], None]:
    def tick() -> None:
        if pid.exists() and pid.read_text().endswith("\n"):
            act()

    return tick


@pytest.mark.slow
def test_removing_the_folder_ends_the_trial_and_its_processes(stand_in: StandIn, pid: Path) -> None:
    remove = once_it_sleeps(pid, lambda: shutil.rmtree(stand_in.folder))
    with pytest.raises(Inconclusive, match="buggy was removed while its trial ran"):
        stand_in.launch(SLEEPER.replace("{pid}", str(pid)), remove)
    assert not lives(int(pid.read_text()))
    assert not stand_in.folder.exists()


def test_processes_end_even_if_the_clean_up_fails(
    stand_in: StandIn, pid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError("no descriptors are left"))
    monkeypatch.setattr(launching, "_dump_stacks", full)
    interrupt = once_it_sleeps(pid, Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(OSError, match="no descriptors"):
        stand_in.launch(SLEEPER.replace("{pid}", str(pid)), interrupt)
    assert not lives(int(pid.read_text()))
