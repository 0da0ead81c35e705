"""Tasks on a real Slurm of two nodes: what is submitted once, what is lost, and what is cancelled.

Needs Debian's slurmctld, slurmd, slurm-client and munge: ``make slurm``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.run import slurm
from harness.run.slurm import Lost, Shape, Work
from harness.system.errors import Fault, UserError
from harness.system.files import ROOT
from tests import slurm_cluster, slurm_tasks
from tests.sandbox import PATIENCE, hear_signals, within
from tests.slurm_cluster import Cluster, cluster
from tests.slurm_tasks import notes, on, works

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.by_day(3),
    pytest.mark.skipif(bool(slurm_cluster.missing()), reason="Slurm is not installed"),
]
if not slurm_cluster.missing():
    pytest.importorskip("submitit")


@pytest.fixture(scope="module")
def one_cluster() -> Iterator[Cluster]:
    with cluster() as both_nodes:
        yield both_nodes


@pytest.fixture
def slurm_nodes(
    one_cluster: Cluster, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """The cluster, idle, with an empty cache."""
    monkeypatch.setenv("SLURM_CONF", str(one_cluster.conf))
    monkeypatch.setenv("HARNESS_CACHE", str(shared / "cache"))
    monkeypatch.setenv("PATH", slurm_cluster.PATH)
    monkeypatch.setattr(slurm, "GRACE", 4.0)
    monkeypatch.setattr(slurm, "QUEUE_POLL", 0.5)
    one_cluster.wait()
    yield one_cluster
    one_cluster.ask("scancel", "--me")


def results_of(tasks: Sequence[Work], do: Any = slurm_tasks.nap, **changes: Any) -> dict[int, Any]:
    """The results of tasks, by index."""
    return dict(slurm.results(tasks, do, on(**changes)))


@contextmanager
def started(
    tasks: Sequence[Work], do: Any = slurm_tasks.nap, **changes: Any
) -> Iterator[Future[dict[int, Any]]]:
    """Tasks that are followed in the background; yields their future results."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(results_of, tasks, do, **changes)


def queue(of: Cluster) -> list[str]:
    """The names of the jobs in the queue."""
    return of.ask("squeue", "--noheader", "--format=%j").split()


def folders_left() -> list[Path]:
    return list(slurm.home().iterdir())


def command(folder: Path, count: int, seconds: float) -> subprocess.Popen[str]:
    """A command with some tasks, in a process of its own."""
    words = [sys.executable, "-m", "tests.slurm_tasks", str(folder), str(count), str(seconds)]
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, text=True, preexec_fn=hear_signals
    )


def killed(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate(timeout=10)


def test_tasks_run_on_both_nodes_and_leave_nothing_behind(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    outputs = results_of(works(tmp_path, [1] * 6))
    assert sorted(outputs) == list(range(6))
    assert {value.split()[-1] for value in outputs.values()} == {"n1", "n2"}
    assert folders_left() == []


def test_arrays_are_split_and_together_run_no_more_than_the_most_at_once(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    tasks = [*works(tmp_path, [1] * 5), Work((str(tmp_path), "wide", 1), Shape(2, 0))]
    assert len(results_of(tasks, array=2, most=2)) == 6
    at_once = [
        sum(float(b[2]) <= float(end[2]) for b in notes(tmp_path, "begin"))
        - sum(float(e[2]) < float(end[2]) for e in notes(tmp_path, "end"))
        for end in notes(tmp_path, "end")
    ]
    assert max(at_once) == 2, at_once


def test_an_interrupted_command_cancels_its_tasks_and_no_others(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    slurm_nodes.ask("sbatch", "--output=/dev/null", "--job-name=other", "--wrap", "sleep 60")
    other_folder = tmp_path / "other"
    other_folder.mkdir()
    with command(other_folder, 1, 60) as neighbour:
        # Before ours take all cores.
        within(PATIENCE, lambda: notes(other_folder, "begin"), "the start of the other")
        with command(tmp_path, 3, 60) as ours:
            within(PATIENCE, lambda: notes(tmp_path, "begin"), "a start")
            ours.send_signal(signal.SIGINT)
            ours.communicate(timeout=60)
        within(PATIENCE, lambda: len(queue(slurm_nodes)) == 2, "the end of ours")
        assert "other" in queue(slurm_nodes)
        # The task ended its processes itself, and not Slurm with SIGKILL.
        within(PATIENCE, lambda: notes(tmp_path, "interrupted"), "its interruption")
        assert len(folders_left()) == 1
        neighbour.send_signal(signal.SIGTERM)
        neighbour.communicate(timeout=60)
    within(PATIENCE, lambda: queue(slurm_nodes) == ["other"], "the end of both")
    assert folders_left() == []


def test_a_cancelled_task_is_lost_with_slurms_reason(slurm_nodes: Cluster, tmp_path: Path) -> None:
    with started(works(tmp_path, [60]), slurm_tasks.interruptible) as tasks:
        within(PATIENCE, lambda: notes(tmp_path, "begin"), "a start")
        slurm_nodes.ask("scancel", "--name", queue(slurm_nodes)[0])
        (lost,) = tasks.result().values()
    assert isinstance(lost, Lost)
    assert "CANCELLED" in str(lost), str(lost)
    assert len(notes(tmp_path, "interrupted")) == 1


@pytest.mark.exhaustive
def test_a_task_over_its_time_limit_is_lost_with_slurms_reason(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    (lost,) = results_of(works(tmp_path, [300]), slurm_tasks.interruptible, time=1).values()
    assert isinstance(lost, Lost)
    assert "DUE TO TIME LIMIT" in str(lost), str(lost)
    assert len(notes(tmp_path, "interrupted")) == 1


@pytest.mark.exhaustive
def test_a_killed_slurmd_loses_no_task_if_it_comes_back(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    with started(works(tmp_path, [6] * 2, cores=2)) as tasks:
        within(PATIENCE, lambda: len(notes(tmp_path, "begin")) == 2, "two starts")
        slurm_nodes.stop("n1")
        time.sleep(1)
        slurm_nodes.node("n1")
        assert len(tasks.result()) == 2
    assert len(notes(tmp_path, "begin")) == 2


@pytest.mark.exhaustive
def test_slurm_starts_the_tasks_of_a_node_that_fails_again(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    with started(works(tmp_path, [8] * 2, cores=2)) as tasks:
        within(PATIENCE, lambda: len(notes(tmp_path, "begin")) == 2, "two starts")
        slurm_nodes.fail("n1")
        outputs = tasks.result()
        slurm_nodes.node("n1")
    assert [value.split()[-1] for value in outputs.values()] == ["n2", "n2"]
    assert len(notes(tmp_path, "begin")) == 3
    slurm_nodes.wait()


@pytest.mark.exhaustive
def test_a_restarted_controller_loses_nothing(slurm_nodes: Cluster, tmp_path: Path) -> None:
    with started(works(tmp_path, [4] * 6)) as tasks:
        within(PATIENCE, lambda: notes(tmp_path, "begin"), "a start")
        slurm_nodes.stop("slurmctld", signal.SIGTERM)
        time.sleep(5)
        slurm_nodes.controller()
        assert sorted(tasks.result()) == list(range(6))
    assert len(notes(tmp_path, "begin")) == 6


def test_a_controller_that_does_not_answer_is_reported_in_one_line(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    slurm_nodes.stop("slurmctld", signal.SIGTERM)
    with pytest.raises(slurm.Unreachable, match="controller does not answer"):
        results_of(works(tmp_path, [1]))
    slurm_nodes.controller()
    assert folders_left() == []


@pytest.mark.exhaustive
def test_a_full_shared_folder_is_named(
    slurm_nodes: Cluster, tmpfs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmpfs))
    try:
        outputs = list(results_of(works(tmp_path, [0] * 8), slurm_tasks.large).values())
    except Fault as error:  # it was full before a task could be submitted again
        outputs = [error]
    faults = [str(value) for value in outputs if isinstance(value, Fault)]
    assert faults
    assert all("No space left" in fault or "no room on the disk" in fault for fault in faults)


def test_a_node_that_does_not_see_the_cache_is_named(
    slurm_nodes: Cluster, tmp_path: Path, shared: Path
) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("this user cannot hide a folder from a node")
    slurm.home()
    slurm_nodes.stop("n2")
    slurm_nodes.node("n2", hidden=shared)
    time.sleep(1)
    slurm_nodes.wait()
    try:
        outcomes = results_of(works(tmp_path, [0]), extra={"nodelist": "n2"})
    finally:
        slurm_nodes.stop("n2")
        slurm_nodes.node("n2")
        slurm_nodes.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
    assert isinstance(outcomes[0], Lost)
    assert "do all nodes see" in str(outcomes[0])


def test_an_error_of_ours_on_a_node_is_a_fault_in_one_line(
    slurm_nodes: Cluster, tmp_path: Path
) -> None:
    (fault,) = results_of(works(tmp_path, [0]), slurm_tasks.fail).values()
    assert str(fault) == "the task failed on its node: ZeroDivisionError: 0"
    assert type(fault) is Fault


def test_what_sbatch_refuses_is_a_mistake_in_one_line(slurm_nodes: Cluster, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sbatch refused the tasks: .*invalid partition"):
        results_of(works(tmp_path, [0]), partition="nowhere")
    assert folders_left() == []


MATRIX = ("matrix", "scenario=sampler_shards", "pins.accelerate=0.29.3,0.30.0,0.30.1")


@pytest.fixture
def harness(slurm_nodes: Cluster, shared: Path) -> Callable[..., tuple[int, str]]:
    """Runs a command of the harness; returns its exit code and its output."""

    def run(*words: str) -> tuple[int, str]:
        process = subprocess.run(
            [sys.executable, "-m", "harness", *words],
            cwd=ROOT,
            env={**os.environ, "HARNESS_RUNS": str(shared / "runs")},
            capture_output=True,
            text=True,
        )
        return process.returncode, process.stdout + process.stderr

    return run


def test_a_matrix_has_the_same_table_and_stored_cells_as_on_this_machine(
    harness: Callable[..., tuple[int, str]], shared: Path
) -> None:
    code, out = harness(*MATRIX, "on=slurm")
    assert (code, "3 cells: 1 affected, 2 not affected" in out) == (0, True), out
    assert "2 not affected (3 stored)" in harness(*MATRIX, "on=slurm")[1]
    assert "2 not affected (3 stored)" in harness(*MATRIX)[1]
    (run,) = list((shared / "runs").glob("*-sampler_shards-*"))[:1]
    record = json.loads((run / "run.json").read_text())
    assert record["trials"]["released"]["ranks"] == 2


def test_a_run_prints_the_verdict_and_has_its_exit_code(
    harness: Callable[..., tuple[int, str]],
) -> None:
    code, out = harness("run", "scenario=sampler_shards", "on=slurm", "on.overlays=task")
    assert code == 0, out
    assert "sampler_shards: reproduced" in out
    code, out = harness("run", "scenario=sampler_shards", "variant=fixed", "on=slurm", "lane=gpu")
    assert code == 2, out
    assert "sbatch refused the tasks: " in out  # no node here has a GPU


def test_the_same_command_again_goes_on_after_a_kill(
    harness: Callable[..., tuple[int, str]], slurm_nodes: Cluster
) -> None:
    harness(*MATRIX[:2], "pins.accelerate=0.30.0", "on=slurm")  # builds an overlay
    # Slurm still shows that task for a while.
    within(PATIENCE, lambda: queue(slurm_nodes) == [], "an empty queue")
    words = [sys.executable, "-m", "harness", *MATRIX, "on=slurm", "on.overlays=task", "--again"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        within(PATIENCE, lambda: len(queue(slurm_nodes)) > 0, "a task in the queue")
        killed(process)
    assert len(folders_left()) == 1
    # Its tasks go on, and store what they find.
    within(PATIENCE, lambda: queue(slurm_nodes) == [], "an empty queue")
    assert "2 not affected (3 stored)" in harness(*MATRIX, "on=slurm")[1]
