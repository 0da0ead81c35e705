"""No process outlives the harness, and the next run removes unfinished files.

No torch here: stand-ins for the harness, torchrun and a rank start each other as the real ones do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.rank import run_folder, supervisor
from harness.system.launch_token import TOKEN
from harness.system.processes import members
from tests.sandbox import PATIENCE, ROOT, lives, within

linux = pytest.mark.skipif(not supervisor.LINUX, reason="only Linux signals the death of a parent")

HARNESS = """
import os, subprocess, sys
from harness.rank import supervisor
os.environ[supervisor.PARENT] = str(os.getpid())
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1], *sys.argv[1:]]).returncode)
"""
TORCHRUN = """
import subprocess, sys
from harness.rank import supervisor
supervisor.keep()
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[2], *sys.argv[2:]]).returncode)
"""
RANK = """
import subprocess, time
from harness.rank import supervisor
supervisor.end_with_parent()
subprocess.Popen(["sleep", "1000"])
subprocess.Popen(["sh", "-c", "sleep 1001 & exec sleep 1002"], start_new_session=True)
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.fixture
def token(tmp_path: Path) -> Iterator[str]:
    """The token of all processes that a test starts."""
    yield str(tmp_path)
    for process in members(str(tmp_path)):
        process.kill()


def start(token: str, *scripts: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", *scripts],
        env=os.environ | {TOKEN: token, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )


def trial(token: str) -> subprocess.Popen[str]:
    """A harness whose rank has started three processes: 7 with the keeper."""
    process = start(token, HARNESS, TORCHRUN, RANK)
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    within(PATIENCE, lambda: len(members(token)) == 7, "all processes of the trial")
    return process


def processes_of(token: str, script: str) -> list[psutil.Process]:
    """The processes that run a script, oldest first; the first with TORCHRUN is the keeper."""
    processes = [p for p in members(token) if p.cmdline()[2:3] == [script]]
    return sorted(processes, key=lambda process: process.create_time())


@linux
@pytest.mark.parametrize("who", [HARNESS, TORCHRUN, RANK], ids=["harness", "keeper", "rank"])
def test_everything_below_a_killed_process_ends(token: str, who: str) -> None:
    process = trial(token)
    killed = processes_of(token, who)[0]
    below = killed.children(recursive=True) if who is not RANK else []
    killed.kill()
    within(
        PATIENCE,
        lambda: not any(lives(process.pid) for process in below[:2]),
        "the end of the children",
    )
    if who is not TORCHRUN:  # without the keeper, only end_all ends what ranks started
        within(PATIENCE, lambda: not members(token), "the end of all")
    process.kill()
    process.wait()


@linux
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_everything_ends_with_torchrun_and_the_keeper_reports_it(
    token: str, number: signal.Signals
) -> None:
    process = trial(token)
    _, torchrun = processes_of(token, TORCHRUN)
    os.kill(torchrun.pid, number)
    assert process.wait(PATIENCE) != 0
    within(PATIENCE, lambda: not members(token), "the end of all")


@linux
@pytest.mark.parametrize("code", [0, 137])
def test_the_keeper_passes_on_the_exit_code(token: str, code: int) -> None:
    assert start(token, HARNESS, TORCHRUN, f"raise SystemExit({code})").wait(PATIENCE) == code


@linux
def test_the_keeper_passes_on_a_signal(token: str) -> None:
    dies = "import os; from harness.rank import supervisor; supervisor.keep(); os.abort()"
    assert start(token, dies).wait(PATIENCE) == -signal.SIGABRT


@linux
def test_a_process_whose_parent_is_already_dead_ends_at_once(token: str) -> None:
    late = "from harness.rank import supervisor; supervisor.end_with_parent(); print('lives')"
    script = f"import os; os.environ['{supervisor.PARENT}'] = '1'\n{late}"
    process = start(token, script)
    assert process.communicate(timeout=PATIENCE)[0] == ""
    assert process.returncode == -signal.SIGKILL


def test_without_a_harness_no_signal_is_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(supervisor.PARENT, raising=False)
    monkeypatch.setattr(supervisor, "_prctl", None)
    supervisor.end_with_parent()


# What killed runs leave in the folder of all runs

RUN = "20261121-033325-bf16_clip-ce3e10"


OTHER = "20261121-033325-bf16_clip-000000"
UNFINISHED = (
    f".{RUN}.ab12_x9z/run.json {RUN}/.verdict.json.ab12_x9z {RUN}/buggy/.exit.json.ab12_x9z "
    f"{RUN}/fixed/save/.exit.json.ab12_x9z"
)
FINISHED = (
    f".git/config .notes.ab12_x9z {RUN}/run.json {RUN}/buggy/rank_0.jsonl.part "
    f"{OTHER}/.verdict.json.ab12_x9z {OTHER}/verdict.json 20261121/.verdict.json.x"
)


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def make(folder: Path, names: str) -> None:
    for path in map(folder.joinpath, names.split()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_the_next_run_removes_unfinished_files_if_no_other_run_is_alive(tmp_path: Path) -> None:
    make(tmp_path, f"{UNFINISHED} {FINISHED}")
    with run_folder.shared(tmp_path):
        before = files(tmp_path)
        assert set(FINISHED.split()) <= before
        assert not set(UNFINISHED.split()) & before
        assert not (tmp_path / f".{RUN}.ab12_x9z").exists()
        make(tmp_path, UNFINISHED)
        with run_folder.shared(tmp_path):
            assert files(tmp_path) == before | set(UNFINISHED.split())
    with run_folder.shared(tmp_path):
        assert files(tmp_path) == before


def test_a_folder_that_cannot_be_made_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with run_folder.shared(tmp_path / "file" / "runs"):
        pass
