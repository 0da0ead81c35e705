"""A trial over several nodes: its arguments, its log, its lane. ``test_two_nodes`` runs some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.api.spec import Lane, Outcome
from harness.run import job, nodes
from harness.system.errors import ExitCode, Unsupported
from tests.made_up import set_gpus
from tests.recording import Recording

SCENARIO = "sampler_shards"


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (("launch.nodes=0",), {}, "launch.nodes=0: choose 1 or more"),
        (
            ("launch.nodes=2",),
            {},
            "launch.nodes=2 needs an allocation of Slurm: use salloc or sbatch with --nodes=2, or "
            "on=slurm",
        ),
        (
            ("launch.nodes=3",),
            {"SLURM_JOB_ID": "1"},
            "launch.nodes=3 does not divide the number of ranks of variant 'buggy' of "
            "sampler_shards, which is 2",
        ),
        (
            ("launch.nodes=2",),
            {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"},
            "launch.nodes=2 is more than the nodes of this allocation, 1",
        ),
    ],
)
def test_a_mistake_about_nodes_is_reported_in_one_line(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    message: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("SLURM_JOB_ID", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["run", f"scenario={SCENARIO}", *arguments]) == ExitCode.USER_MISTAKE
    assert capsys.readouterr().err == f"harness: {message}\n"
    assert not runs.exists()


LOG = """\
srun: job step created
1: a
0: b
1:   rank      : 1 (local_rank: 0)
0: c
1:   exitcode  : 3
{error}0: 1: d
"""
ENDED = "srun: error: n2: task 1: Exited with exit code 1\n"
SECOND = ["a\n", "  rank      : 1 (local_rank: 0)\n", "  exitcode  : 3\n"]
FIRST = ["b\n", "c\n", "1: d\n"]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("", [*FIRST, *SECOND]),
        (ENDED, [ENDED, *FIRST, *SECOND]),
        (ENDED.replace("n2: task 1", "n1: task 0"), [*SECOND, *FIRST]),
    ],
    ids=["nobody failed", "the second node", "the first node"],
)
def test_a_log_is_sorted_by_node_and_the_one_that_failed_first_is_last(
    error: str, expected: list[str]
) -> None:
    lines = nodes.by_node(LOG.format(error=error)).splitlines(keepends=True)
    assert lines[0] == "srun: job step created\n"
    assert [line for line in lines if line in expected] == expected


CANCELLED = "slurmstepd-n1: error: *** STEP 9.0 ON n1 CANCELLED AT noon DUE TO TIME LIMIT ***\n"
NO_LAUNCH = "Task launch for StepId=9.0 failed on node n2: Communication connection failure"


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (ENDED, "n2: task 1: Exited with exit code 1"),
        (ENDED + CANCELLED, "STEP 9.0 ON n1 CANCELLED AT noon DUE TO TIME LIMIT"),
        (f"srun: error: {NO_LAUNCH}\n{ENDED}{CANCELLED}", NO_LAUNCH),
        ("srun: Job step aborted\n", ""),
    ],
    ids=["an agent failed", "Slurm ended the step", "an agent was not started", "no reason"],
)
def test_the_reason_of_a_failure_is_read_from_the_log_of_srun(log: str, reason: str) -> None:
    assert nodes.why(log) == reason


def test_gpus_are_counted_on_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpus(monkeypatch, 2, free=999)
    four_ranks = catalog.scenario("tied_embedding_order")
    assert job.choose_lane(four_ranks, 4, "auto", 2) is Lane.GPU
    assert job.choose_lane(four_ranks, 4, "auto") is Lane.CPU
    with pytest.raises(Unsupported, match="2 ranks on a GPU need 1000 MiB"):
        job.choose_lane(four_ranks, 4, "gpu")


@pytest.mark.parametrize(
    ("launch", "reason"),
    [
        ({"nodes": 2}, ""),
        ({"nodes": 1}, "begin: host differs between ranks 0 and 1"),
        ({}, "begin: host differs between ranks 0 and 1"),
    ],
)
def test_hosts_are_compared_on_each_node(
    recording: Recording, launch: dict[str, Any], reason: str
) -> None:
    with recording.run() as run:
        run["launch"].update(launch)
    with recording.record("buggy", "begin", 1) as begin:
        begin["host"] = "elsewhere"
    trial = recording.trial("buggy")
    assert (trial.reason if trial.outcome is Outcome.INCONCLUSIVE else "") == reason
