"""Faults, end to end through the command line. Each ends with its documented outcome and exit code,
never with ``reproduced``; no process and no unfinished file is left.

``-m "not launch"`` selects tests without ranks. The others start torchrun on copies of overlays.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.__main__ import INTERRUPTED, main
from harness.bugs import catalog
from harness.rank.exits import EXIT_FILE
from harness.rank.manifest import MANIFEST
from harness.rank.run_folder import RUN_FILE, VERDICT_FILE
from harness.releases import overlay, overlay_cache
from harness.system.errors import ExitCode
from harness.system.files import sha256
from tests.made_up import set_gpus
from tests.overlays import copy, lent
from tests.sandbox import (
    PATIENCE,
    ROOT,
    Ended,
    Sandbox,
    ended,
    fill,
    mid_run,
    outcome,
    trial,
    until,
    within,
)

SCENARIO = "sampler_shards"  # the quickest with two ranks
BUGGY_ALONE = ("run", f"scenario={SCENARIO}", "variant=buggy", "lane=cpu")
LONG = "scenario.epochs=100000"
WITHOUT_GPUS = f"run scenario={SCENARIO} lane=gpu"
"""If no GPU is visible, this run ends with a verdict without any launch or overlay."""
DEFECT = "tied_embedding_training"
"""A quick scenario whose buggy variant has a defect: making its overlay needs no package index."""

SITECUSTOMIZE = """\
import os, sys
def fail(rank):
    if rank in os.environ.get("FAULTY", ""):
        exec(os.environ["FAULT"], globals())
def rank_is_set(event, arguments):
    if event == "os.putenv" and arguments[0] == b"RANK":
        fail(arguments[1].decode())
if "harness.rank.scenario" in sys.orig_argv:
    fail(os.environ["RANK"])
if "harness.rank.forkserver" in sys.orig_argv:
    sys.addaudithook(rank_is_set)
"""
"""In an overlay's site-packages, this makes a rank fail before the harness's code runs: in a cold
launch when the interpreter starts, in a warm one when torchrun sets RANK."""

SLEEPS = """
import time, torch.distributed
def sleep_forever(*_, **__):
    time.sleep(1e6)
torch.distributed.init_process_group = sleep_forever
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return faulty_cache(tmp_path_factory.mktemp("cache"))


def faulty_cache(ours: Path) -> Path:
    """A cache with a copy of the user's overlay, in which FAULT makes ranks fail."""
    with lent(SCENARIO, "buggy") as overlays:
        folder = copy(overlays["buggy"], ours)
    file = folder / overlay.SITE / "sitecustomize.py"
    file.write_text(SITECUSTOMIZE)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][file.name] = [file.stat().st_size, sha256(file)]
    (folder / MANIFEST).unlink()  # it may be a hard link to the user's
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return ours


@pytest.fixture(params=["warm", pytest.param("cold", marks=pytest.mark.cold)])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path, cache: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox.under(tmp_path, cache)
    sandbox.warm = request.param == "warm"
    yield sandbox
    sandbox.end()


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox with an empty cache. Its tests must leave nothing."""
    sandbox = Sandbox.under(tmp_path, tmp_path / "cache")
    yield sandbox
    try:
        sandbox.assert_nothing_left()
    finally:
        sandbox.end()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """``command(sandbox, *arguments)``: runs a command in this process, which can be patched."""
    before = signal.getsignal(signal.SIGTERM)

    def call(sandbox: Sandbox, *arguments: str) -> Ended:
        monkeypatch.chdir(sandbox.cwd)
        monkeypatch.setenv("HARNESS_RUNS", str(sandbox.runs))
        monkeypatch.setenv("HARNESS_CACHE", str(sandbox.cache))
        return Ended(main(arguments), *capsys.readouterr())

    yield call
    signal.signal(signal.SIGTERM, before)


# Ranks that fail


@pytest.mark.slow
@pytest.mark.launch
def test_a_rank_killed_mid_run_is_inconclusive_and_named(sandbox: Sandbox) -> None:
    process = sandbox.start(*BUGGY_ALONE, LONG)
    os.kill(mid_run(sandbox, process)[0], signal.SIGKILL)
    ending = ended(process)
    assert ending.code == ExitCode.INCONCLUSIVE
    assert outcome(sandbox) == ("inconclusive", "rank 0 failed first: was ended by SIGKILL")
    assert "reproduced" not in ending.out
    sandbox.assert_nothing_left()


@pytest.mark.launch
@pytest.mark.slow
def test_a_rank_that_hangs_ends_at_the_deadline_and_leaves_its_stack(sandbox: Sandbox) -> None:
    ending = sandbox.run(*BUGGY_ALONE, "launch.timeout=25", FAULT=SLEEPS, FAULTY="1")
    assert ending.code == ExitCode.INCONCLUSIVE
    assert outcome(sandbox)[0] == "inconclusive"
    assert outcome(sandbox)[1].startswith("ended at its deadline after 2")
    assert "reproduced" not in ending.out
    stacks = [(sandbox.folder() / "buggy" / f"stack_rank_{n}.txt").read_text() for n in (0, 1)]
    assert "harness/rank/scenario.py" in stacks[0]
    assert "sleep_forever" in stacks[1]
    sandbox.assert_nothing_left()


@pytest.mark.launch
@pytest.mark.slow
def test_a_deadline_before_torch_is_imported_is_inconclusive(sandbox: Sandbox) -> None:
    ending = sandbox.run(*BUGGY_ALONE, "launch.timeout=0.2")
    assert ending.code == ExitCode.INCONCLUSIVE
    assert outcome(sandbox)[0] == "inconclusive"
    assert outcome(sandbox)[1].startswith("ended at its deadline after ")
    assert not list(sandbox.folder().rglob("rank_*.jsonl"))
    sandbox.assert_nothing_left()


@pytest.mark.launch
@pytest.mark.slow
def test_ranks_that_exit_0_without_records_are_inconclusive(sandbox: Sandbox) -> None:
    ending = sandbox.run(*BUGGY_ALONE, FAULT="os._exit(0)", FAULTY="01")
    assert ending.code == ExitCode.INCONCLUSIVE
    assert outcome(sandbox) == ("inconclusive", "rank 0 left no complete records")
    assert json.loads((sandbox.folder() / "buggy" / EXIT_FILE).read_text())["code"] == 0
    sandbox.assert_nothing_left()


# Ctrl-C, and a killed harness


@pytest.mark.slow
@pytest.mark.launch
def test_ctrl_c_ends_all_processes_and_leaves_the_stacks(sandbox: Sandbox, command: Any) -> None:
    process = sandbox.start(*BUGGY_ALONE, LONG)
    mid_run(sandbox, process)
    process.send_signal(signal.SIGINT)
    ending = ended(process)
    sandbox.assert_nothing_left()
    assert ending.code == INTERRUPTED
    assert ending.complaint.startswith("interrupted")
    for rank in (0, 1):
        stack = (sandbox.folder() / "buggy" / f"stack_rank_{rank}.txt").read_text()
        assert f"{SCENARIO}/scenario.py" in stack
    again = command(sandbox, "grade", str(sandbox.folder()))
    assert again.code == ExitCode.INCONCLUSIVE
    assert "buggy: interrupted" in again.out


STARTS_A_PROCESS = """
import subprocess
subprocess.Popen(["sleep", "1000"], start_new_session=True)
"""


@pytest.mark.launch
@pytest.mark.slow
def test_all_processes_end_with_a_killed_harness_and_the_next_run_cleans_up(
    sandbox: Sandbox, command: Any
) -> None:
    process = sandbox.start(*BUGGY_ALONE, LONG, FAULT=STARTS_A_PROCESS, FAULTY="0")
    ranks = mid_run(sandbox, process)
    assert any(p.name() == "sleep" for p in sandbox.living())
    process.kill()
    code = process.wait()
    within(30, lambda: sandbox.living() == [], "the end of its ranks and their processes")
    assert code == -signal.SIGKILL
    assert not any(psutil.pid_exists(rank) for rank in ranks)
    again = command(sandbox, "grade", str(sandbox.folder()))
    assert again.code == ExitCode.INCONCLUSIVE
    assert "reproduced" not in again.out
    unfinished = sandbox.runs / f".{sandbox.folder().name}.a1b2c3d4"
    unfinished.mkdir()
    following = sandbox.run(*BUGGY_ALONE)
    assert following.code == ExitCode.AS_EXPECTED
    assert "symptom" in following.out
    assert not unfinished.exists()
    assert len(list(sandbox.runs.iterdir())) == 2
    assert sandbox.living() == []


# Output that nobody reads


@pytest.mark.launch
def test_a_run_whose_output_nobody_reads_is_graded(sandbox: Sandbox) -> None:
    process = sandbox.start(*BUGGY_ALONE)
    assert process.stdout
    assert process.stdout.readline()
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(PATIENCE) == ExitCode.AS_EXPECTED
    assert trial(sandbox.folder())["outcome"] == "symptom"
    sandbox.assert_nothing_left()


@pytest.mark.parametrize(
    ("words", "redirection", "code"),
    [
        ("list", "| true", 0),
        ("list --json", "| head -1", 0),
        (WITHOUT_GPUS, "| head -1", 4),
        (WITHOUT_GPUS, ">&-", 4),
        (WITHOUT_GPUS, "<&- >&- 2>&-", 4),
    ],
)
def test_a_command_whose_output_nobody_reads_ends_silently_with_its_exit_code(
    bare: Sandbox, words: str, redirection: str, code: int
) -> None:
    through = ("bash", "-c", f'"$@" {redirection}; exit ${{PIPESTATUS[0]}}', "bash")
    ending = bare.run(*words.split(), through=through, CUDA_VISIBLE_DEVICES="")
    assert (ending.code, ending.err) == (code, "")
    if words.startswith("run"):
        assert json.loads((bare.folder() / VERDICT_FILE).read_text())["verdict"] == "unsupported"


def test_an_output_that_cannot_be_written_is_reported_in_one_line(bare: Sandbox) -> None:
    ending = bare.run("list", through=("sh", "-c", '"$@" > /dev/full', "sh"))
    assert ending.code == ExitCode.INCONCLUSIVE
    assert ending.complaint == "no room on the disk: free some; --debug prints the traceback"


@pytest.mark.slow
@pytest.mark.launch
def test_ctrl_c_while_an_overlay_is_made_leaves_nothing_of_it(tmp_path: Path) -> None:
    sandbox = Sandbox.under(tmp_path, tmp_path / "cache")
    with lent(DEFECT, "fixed") as overlays:
        base = overlays["fixed"].key
        copy(overlays["fixed"], sandbox.cache)
    process = sandbox.start("run", f"scenario={DEFECT}", "variant=buggy", "lane=cpu")
    until(lambda: any(sandbox.cache.glob("overlays/.*/site-packages")), "a copy", process)
    process.send_signal(signal.SIGINT)
    ending = ended(process)
    assert ending.code == INTERRUPTED
    assert ending.complaint.startswith("interrupted")
    assert {p.name for p in overlay_cache.folders(sandbox.cache)} == {base}
    assert not sandbox.runs.exists()
    sandbox.assert_nothing_left()


def test_ctrl_c_while_the_index_does_not_answer_ends_uv_too(bare: Sandbox, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(PATIENCE)
        proxy = "http://{}:{}".format(*silent.getsockname())
        process = bare.start(*BUGGY_ALONE, **behind(proxy, tmp_path))
        connection, _ = silent.accept()
        assert len(bare.living()) > 1
        process.send_signal(signal.SIGINT)
        ending = ended(process)
        connection.close()
    assert ending.code == INTERRUPTED
    assert ending.complaint.startswith("interrupted")
    assert {f.suffix for f in (bare.cache / "overlays").iterdir()} == {".lock"}


def behind(proxy: str, tmp_path: Path) -> dict[str, str]:
    """An environment in which uv has no cache and can only reach a proxy."""
    names = ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY")
    proxies = {n: proxy for name in names for n in (name, name.lower())}
    direct = {"NO_PROXY": "", "no_proxy": "", "UV_OFFLINE": "0", "UV_HTTP_RETRIES": "0"}
    return proxies | direct | {"UV_CACHE_DIR": str(tmp_path / "uv")}


NAMELESS = ("unshare", "--uts", "sh", "-c", 'hostname nobody-knows && exec "$@"', "sh")
"""Runs a command on a host whose name does not resolve, as in a container without a network."""


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.skipif(
    subprocess.run([*NAMELESS, "true"], capture_output=True, check=False).returncode != 0,
    reason="changing the host name is not allowed here",
)
def test_ranks_connect_on_a_host_whose_name_does_not_resolve(sandbox: Sandbox) -> None:
    ending = sandbox.run(*BUGGY_ALONE, "launch.timeout=60", through=NAMELESS)
    assert trial(sandbox.folder())["outcome"] == "symptom", ending.out
    sandbox.assert_nothing_left()


# Something is missing before the launch


@pytest.mark.parametrize("pins", [(), ("pins.accelerate=0.28.0",)], ids=["buggy", "other release"])
def test_no_network_and_no_overlay_is_reported_in_one_line(
    bare: Sandbox, tmp_path: Path, pins: tuple[str, ...]
) -> None:
    ending = bare.run(*BUGGY_ALONE, *pins, UV_CACHE_DIR=str(tmp_path / "uv"))
    assert not pins or "accelerate==0.28.0" in ending.complaint
    _assert_no_network(ending, bare)


def test_a_network_that_refuses_connections_counts_as_none(bare: Sandbox, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        proxy = "http://{}:{}".format(*listener.getsockname())
    _assert_no_network(bare.run(*BUGGY_ALONE, **behind(proxy, tmp_path)), bare)


def _assert_no_network(ending: Ended, sandbox: Sandbox) -> None:
    assert ending.code == ExitCode.INCONCLUSIVE
    assert ending.complaint.startswith("no network and nothing in the cache for accelerate==")
    assert "reproduced" not in ending.out
    assert not sandbox.runs.exists()
    assert [f for f in sandbox.cache.rglob("*") if f.is_file() and f.suffix != ".lock"] == []


@pytest.mark.slow
@pytest.mark.launch
def test_an_overlay_that_lacks_a_file_is_reported(tmp_path: Path, command: Any) -> None:
    sandbox = Sandbox.under(tmp_path, tmp_path / "cache")
    with lent(DEFECT, "fixed", "buggy") as overlays:
        key = overlays["buggy"].key
        for original in overlays.values():
            copy(original, sandbox.cache)
    missing = catalog.scenario(DEFECT).defects[0].file
    (sandbox.cache / "overlays" / key / overlay.SITE / missing).unlink()
    ending = command(sandbox, "run", f"scenario={DEFECT}", "variant=buggy", "lane=cpu")
    assert ending.code == ExitCode.INCONCLUSIVE
    assert missing in ending.complaint
    assert f"'python -m harness clean {key}'" in ending.complaint
    assert not sandbox.runs.exists()
    sandbox.assert_nothing_left()
    assert command(sandbox, "clean", key).code == ExitCode.AS_EXPECTED
    with lent(DEFECT, "buggy", cache=sandbox.cache) as again:
        assert again["buggy"].is_new
        assert (again["buggy"].site / missing).is_file()


def test_without_a_gpu_the_gpu_lane_is_unsupported_and_reported(
    bare: Sandbox, command: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_gpus(monkeypatch, 0)
    ending = command(bare, "run", "scenario=sampler_shards", "lane=gpu")
    assert ending.code == ExitCode.UNSUPPORTED
    assert outcome(bare) == ("unsupported", "needs 1 GPU, and this machine has 0")
    assert "needs 1 GPU, and this machine has 0" in ending.out
    assert "reproduced" not in ending.out


@pytest.mark.parametrize(
    ("blocked", "code", "complaint"),
    [
        ("runs", ExitCode.USER_MISTAKE, "cannot write {}/run: Not a directory; name another runs="),
        ("cache", ExitCode.INCONCLUSIVE, "the cache {} is not a folder: name another one in "),
    ],
)
def test_a_file_in_the_place_of_a_folder_stops_a_run_before_it_writes(
    bare: Sandbox, command: Any, tmp_path: Path, blocked: str, code: ExitCode, complaint: str
) -> None:
    (tmp_path / blocked).write_text("mine")
    ending = command(bare, *BUGGY_ALONE)
    assert ending.code == code
    assert ending.complaint.startswith(complaint.format(tmp_path / blocked))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["cwd", blocked])
    assert (tmp_path / blocked).read_text() == "mine"


# A full disk. Without enough GPUs a run still makes its folder, and needs no overlay.


@pytest.mark.parametrize("full", ["runs", RUN_FILE, "buggy"])
def test_a_run_folder_for_which_there_is_no_room_leaves_nothing(
    bare: Sandbox, command: Any, monkeypatch: pytest.MonkeyPatch, full: str
) -> None:
    """``full`` is what does not fit: the parent, the first file, a trial's folder."""
    set_gpus(monkeypatch, 0)
    _no_room_for(full, monkeypatch)
    ending = command(bare, "run", "scenario=sampler_shards", "lane=gpu")
    monkeypatch.undo()
    assert ending.code == ExitCode.INCONCLUSIVE
    assert ending.complaint.startswith(f"no room on the disk for {bare.runs}")
    assert list(bare.runs.rglob("*")) == []


def _no_room_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the disk is full when a file or folder of that name is made."""

    def refuse(real: Callable[..., Any]) -> Callable[..., Any]:
        def refusing(path: Any, *arguments: Any, **keywords: Any) -> Any:
            if name in (Path(path).name, Path(path).name[1 : 1 + len(name)]):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return real(path, *arguments, **keywords)

        return refusing

    monkeypatch.setattr(os, "mkdir", refuse(os.mkdir))
    monkeypatch.setattr(Path, "open", refuse(Path.open))


@pytest.mark.slow
@pytest.mark.launch
def test_a_disk_that_fills_up_mid_run_is_inconclusive(
    tmpfs: Path, tmp_path: Path, cache: Path
) -> None:
    sandbox = Sandbox.under(tmp_path, cache, tmpfs / "runs")
    try:
        process = sandbox.start(*BUGGY_ALONE, LONG)
        mid_run(sandbox, process)
        fill(tmpfs)
        ending = ended(process)
        assert ending.code == ExitCode.INCONCLUSIVE
        assert ending.complaint.startswith(f"no room on the disk for {sandbox.runs}")
        assert "reproduced" not in ending.out
        assert not (sandbox.folder() / VERDICT_FILE).exists()
        sandbox.assert_nothing_left()
    finally:
        sandbox.end()


# Two runs at once


SOMEBODY_ELSES = """RANK=1 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 MASTER_ADDR=192.0.2.1
MASTER_PORT=29500 GROUP_RANK=1 ROLE_RANK=1 TORCHELASTIC_USE_AGENT_STORE=True
TORCHELASTIC_RUN_ID=theirs PET_NNODES=2 PET_MAX_RESTARTS=3 PET_NODE_RANK=1 DS_ACCELERATOR=cuda
PYTHONSAFEPATH= PYTHONWARNINGS=error HARNESS_TRIAL=theirs"""
"""The environment of a run that a rank of another job on a cluster starts."""


@pytest.mark.slow
@pytest.mark.launch
def test_two_runs_at_once_do_not_disturb_each_other(tmp_path: Path, cache: Path) -> None:
    """The second one runs inside another job, with another release on its Python path."""
    sandbox = Sandbox.under(tmp_path, cache)
    elsewhere = tmp_path / "elsewhere" / "accelerate"
    elsewhere.mkdir(parents=True)
    (elsewhere / "__init__.py").write_text("raise ImportError('not the pinned one')\n")
    theirs = dict(pair.split("=") for pair in SOMEBODY_ELSES.split()) | {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{elsewhere.parent}"
    }
    try:
        processes = [sandbox.start(*BUGGY_ALONE), sandbox.start(*BUGGY_ALONE, **theirs)]
        for ending in [ended(process) for process in processes]:
            assert ending.code == ExitCode.AS_EXPECTED, ending
        outcomes = [trial(folder)["outcome"] for folder in sandbox.runs.iterdir()]
        assert outcomes == ["symptom", "symptom"]
        sandbox.assert_nothing_left()
    finally:
        sandbox.end()
