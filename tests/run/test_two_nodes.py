"""Trials over the two nodes of a Slurm that the tests start on this host: they see the processes of
both nodes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

import harness.run.launch as launching
from harness.rank.exits import Identity
from harness.system import machine
from harness.system.errors import ExitCode, Inconclusive
from harness.system.processes import end_all, members
from tests import slurm_cluster
from tests.run.test_faults import LONG, SLEEPS, faulty_cache
from tests.sandbox import PATIENCE, ROOT, Sandbox, ended, living, mid_run, outcome, within
from tests.slurm_cluster import cluster
from tests.stand_in import StandIn, settings
from tests.stand_in import stand_in as make_stand_in

SCENARIO = "sampler_shards"
TWO = ("run", f"scenario={SCENARIO}", "variant=buggy", "lane=cpu", "launch.nodes=2")
OF = Identity("run", SCENARIO, "buggy", "", 4)
TELLS = """
import json, os, time
from pathlib import Path
node = arguments[0].removeprefix("--node-rank=")
Path(f"arguments_{node}").write_text(json.dumps(arguments))
Path(f"variables_{node}").write_text(json.dumps(dict(os.environ)))
print(f"I am {node}", flush=True)
"""
SLEEPER = """
import os, signal, subprocess, sys, time
from pathlib import Path
node = arguments[0].removeprefix("--node-rank=")
dump = Path(f"stack_rank_{node}.txt").open("w")
signal.signal(signal.SIGUSR1, lambda *_: print("asleep", file=dump, flush=True))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"],
                         start_new_session=True)
Path(f"asleep_{node}").write_text("now")
time.sleep(1000)
"""
"""Sleeps on each node, and starts a child in its own session, as torchrun starts ranks."""
SECOND_FAILS = f"""
if arguments[0].endswith("=1"):
    print("OSError: no such thing", flush=True)
    raise SystemExit(7)
{SLEEPER}
"""


def slurm(test: Callable[..., None]) -> Callable[..., None]:
    """Mark a test that needs Slurm's two nodes."""
    return pytest.mark.slurm(pytest.mark.by_day(3)(test))


@pytest.fixture(scope="module")
def allocation() -> Iterator[str]:
    """The id of a job with both nodes of a Slurm."""
    if slurm_cluster.missing():
        pytest.skip(f"Slurm is not installed: no {slurm_cluster.missing()}")
    command = ["salloc", "--no-shell", "--nodes=2", "--job-name=test_nodes"]
    with cluster() as both_nodes, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(both_nodes.conf))
        patch.setenv("PATH", slurm_cluster.PATH)
        both_nodes.wait()
        salloc = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=PATIENCE
        )
        yield re.findall(r"job allocation (\d+)", salloc.stderr)[-1]


@dataclass
class TwoNodes(StandIn):
    """Launches the script on each of two nodes."""

    job: str = ""
    left: list[int] = field(default_factory=list)
    """The processes that still ran when the step had ended, before the harness ended them."""

    def asleep(self) -> bool:
        return all((self.launched / f"asleep_{node}").exists() for node in (0, 1))

    def assert_nobody_is_left(self) -> None:
        """No process outlived the step. On another node, nothing else would end it."""
        assert self.left == []
        assert steps(self.job) == []


def steps(job: str) -> list[str]:
    """The steps of a job that Slurm still lists."""
    command = ["squeue", "--noheader", "--steps", f"--jobs={job}", "--format=%i"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def two_nodes(allocation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TwoNodes:
    make_stand_in(tmp_path / "site-packages")
    runs = tmp_path / "runs"
    runs.mkdir()
    both = replace(settings(tmp_path / "site-packages"), nodes=2)
    launcher = TwoNodes(runs, both, OF, job=allocation)
    monkeypatch.setenv("SLURM_JOB_ID", allocation)
    monkeypatch.setenv("SLURM_NTASKS", "7")  # an option of the allocation, not of our step

    def look_and_end(token: str) -> tuple[int, ...]:
        launcher.left += [process.pid for process in members(token)]
        return end_all(token)

    monkeypatch.setattr(launching, "end_all", look_and_end)
    return launcher


@slurm
def test_an_agent_runs_on_each_node(two_nodes: TwoNodes) -> None:
    ending = two_nodes.launch(TELLS)
    assert (ending["code"], ending["failure"], ending["reason"]) == (0, None, "")
    arguments = [json.loads((two_nodes.launched / f"arguments_{n}").read_text()) for n in (0, 1)]
    endpoints = [next(a for a in each if a.startswith("--rdzv-endpoint")) for each in arguments]
    assert endpoints[0] == endpoints[1]
    assert "--rdzv-endpoint=127.0.0.1:" in endpoints[0]  # the NodeAddr of the first node
    assert all("--nproc-per-node=2" in each for each in arguments)
    for node in (0, 1):
        variables = json.loads((two_nodes.launched / f"variables_{node}").read_text())
        assert not [name for name in variables if name.startswith("SLURM")]
    log = (two_nodes.launched / "torchrun.log").read_text()
    assert re.findall("^I am.*", log, re.MULTILINE) == ["I am 0", "I am 1"]
    two_nodes.assert_nobody_is_left()


@slurm
def test_a_deadline_ends_both_nodes_after_their_stacks(two_nodes: TwoNodes) -> None:
    ending = two_nodes.launch(SLEEPER, timeout=5)
    assert (ending["timed_out"], ending["survivors"]) == (True, [])
    for node in (0, 1):
        assert (two_nodes.launched / f"stack_rank_{node}.txt").read_text() == "asleep\n"
    two_nodes.assert_nobody_is_left()


@slurm
def test_ctrl_c_ends_both_nodes(two_nodes: TwoNodes) -> None:
    def tick() -> None:
        if two_nodes.asleep():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        two_nodes.launch(SLEEPER, tick)
    assert two_nodes.exit()["interrupted"]
    two_nodes.assert_nobody_is_left()


@slurm
@pytest.mark.exhaustive
def test_removing_the_folder_ends_both_nodes(two_nodes: TwoNodes) -> None:
    def tick() -> None:
        if two_nodes.asleep():
            shutil.rmtree(two_nodes.folder)

    with pytest.raises(Inconclusive, match="was removed while its trial ran"):
        two_nodes.launch(SLEEPER, tick)
    two_nodes.assert_nobody_is_left()


@slurm
def test_an_agent_that_fails_ends_the_other_node(two_nodes: TwoNodes) -> None:
    ending = two_nodes.launch(SECOND_FAILS)
    assert not ending["timed_out"]
    assert ending["code"] != 0
    assert ending["reason"] == "OSError: no such thing"
    two_nodes.assert_nobody_is_left()


@slurm
def test_an_agent_that_cannot_start_ends_the_other_node(two_nodes: TwoNodes) -> None:
    python = two_nodes.folder / "python"
    python.write_text(f'#!/bin/sh\n[ $SLURM_NODEID = 1 ] && exit 9\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    two_nodes.settings = replace(two_nodes.settings, python=str(python))
    ending = two_nodes.launch(SLEEPER)
    assert not ending["timed_out"]
    assert ending["code"] != 0
    assert re.fullmatch(r"\S+: task 1: Exited with exit code 9", ending["reason"])
    two_nodes.assert_nobody_is_left()


@slurm
@pytest.mark.exhaustive
def test_killing_srun_ends_both_nodes(two_nodes: TwoNodes) -> None:
    """Slurm kills the agents of the step. Its cgroups would also end what ranks started; this Slurm
    has none, so the harness does it."""

    def tick() -> None:
        if two_nodes.asleep():
            for process in psutil.Process().children():
                if process.name() == "srun":
                    process.kill()

    ending = two_nodes.launch(SLEEPER, tick)
    assert ending["code"] == -signal.SIGKILL
    assert steps(two_nodes.job) == []
    assert ending["survivors"] == []


HARNESS = """
import sys
from pathlib import Path
import harness.run.launch as launching
from dataclasses import replace
from tests.stand_in import settings
from tests.run.test_two_nodes import OF
folder, site = map(Path, sys.argv[1:])
launching.launch(folder, folder / OF.variant, OF, replace(settings(site), nodes=2), timeout=1000)
"""


@slurm
@pytest.mark.exhaustive
@pytest.mark.parametrize("asleep", [True, False], ids=["while it runs", "while it starts"])
def test_killing_the_harness_ends_both_nodes(two_nodes: TwoNodes, asleep: bool) -> None:
    two_nodes.launched.mkdir()
    (two_nodes.launched / "script.py").write_text(SLEEPER)
    mine = os.environ | {"PYTHONPATH": str(ROOT), "OF_THIS_TEST": str(two_nodes.folder)}
    words = [sys.executable, "-c", HARNESS, str(two_nodes.folder), str(two_nodes.settings.site)]
    process = subprocess.Popen(words, env=mine)

    def survivors() -> list[psutil.Process]:
        return living(
            lambda survivor: survivor.environ().get("OF_THIS_TEST") == str(two_nodes.folder)
        )

    try:
        within(
            PATIENCE, lambda: two_nodes.asleep() if asleep else len(survivors()) > 1, "its start"
        )
        process.kill()
        process.wait()
        within(PATIENCE, lambda: not survivors(), "the end of all its processes")
        within(PATIENCE, lambda: not steps(two_nodes.job), "the end of its step")
    finally:
        for survivor in survivors():
            survivor.kill()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with a copy of the user's overlay, in which FAULT makes ranks fail."""
    return faulty_cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def sandbox(
    allocation: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Sandbox]:
    monkeypatch.setenv("SLURM_JOB_ID", allocation)
    sandbox = Sandbox.under(tmp_path, cache)
    yield sandbox
    sandbox.end()


RAISES = """
import torch.distributed
def fail(*_, **__):
    raise ValueError("wrong on this rank")
torch.distributed.init_process_group = fail
"""


@slurm
def test_a_rank_of_the_second_node_that_raises_is_named(sandbox: Sandbox, allocation: str) -> None:
    ending = sandbox.run(*TWO, FAULT=RAISES, FAULTY="1")
    assert ending.code == ExitCode.INCONCLUSIVE
    assert outcome(sandbox) == (
        "inconclusive",
        "rank 1 failed first: ValueError: wrong on this rank",
    )
    assert "wrong on this rank" in (sandbox.folder() / "buggy/logs/rank_1/stderr.log").read_text()
    sandbox.assert_nothing_left()
    assert steps(allocation) == []


@slurm
def test_a_killed_rank_of_the_second_node_is_named(sandbox: Sandbox, allocation: str) -> None:
    process = sandbox.start(*TWO, LONG)
    os.kill(mid_run(sandbox, process)[1], signal.SIGKILL)
    assert ended(process).code == ExitCode.INCONCLUSIVE
    assert outcome(sandbox) == ("inconclusive", "rank 1 failed first: was ended by SIGKILL")
    sandbox.assert_nothing_left()
    assert steps(allocation) == []


@slurm
def test_a_hanging_rank_of_the_second_node_leaves_its_stack(sandbox: Sandbox) -> None:
    ending = sandbox.run(*TWO, "launch.timeout=30", FAULT=SLEEPS, FAULTY="1")
    assert ending.code == ExitCode.INCONCLUSIVE
    assert outcome(sandbox)[1].startswith("ended at its deadline after 3")
    assert "sleep_forever" in (sandbox.folder() / "buggy" / "stack_rank_1.txt").read_text()
    sandbox.assert_nothing_left()


@slurm
@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_ending_the_harness_ends_the_ranks_of_both_nodes(
    sandbox: Sandbox, allocation: str, number: signal.Signals
) -> None:
    process = sandbox.start(*TWO, LONG)
    mid_run(sandbox, process)
    process.send_signal(number)
    ended(process)
    within(PATIENCE, lambda: not sandbox.living(), "the end of all its processes")
    within(PATIENCE, lambda: not steps(allocation), "the end of its step")


@slurm
def test_two_nodes_have_the_records_of_one(
    allocation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four ranks on two nodes, then on one."""
    monkeypatch.setenv("SLURM_JOB_ID", allocation)
    sandbox = Sandbox.under(tmp_path, machine.cache_folder())
    name = "tied_embedding_order"
    command = ("run", f"scenario={name}", "lane=cpu")
    records = []
    for arguments in (("launch.nodes=2",), ("launch.warm=false",)):
        # Perhaps nothing has made its overlays before.
        ending = sandbox.run(*command, *arguments, UV_OFFLINE="0")
        assert ending.code == ExitCode.AS_EXPECTED, ending.out + ending.err
        assert f"{name}: reproduced" in ending.out
        records.append(facts_of(sandbox.folder()))
        sandbox.runs.rename(tmp_path / f"done_{len(records)}")
    assert len(records[0]) == 8
    assert records[0] == records[1]


def facts_of(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What ranks recorded, without ids and seconds, which differ between any two runs."""
    return {
        str(file.relative_to(folder)): [
            {
                name: value
                for name, value in json.loads(line).items()
                if name not in ("run", "run_json", "pid", "seconds", "ended")
            }
            for line in file.read_text().splitlines()
        ]
        for file in folder.rglob("rank_*.jsonl")
    }
