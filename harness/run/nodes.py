"""A launch over several nodes: one torchrun agent on each, started by ``srun`` in an allocation.

The harness holds the standard input of srun, which Slurm connects to the agents of all nodes. A
line asks them for stack traces. When the input ends, each agent kills everything below it and
leaves. So nothing is left on any node, even if the harness is killed: the kernel closes its end.
srun returns when all agents have left. Each node runs ``node_agent``.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TextIO

from harness.rank import node_agent
from harness.system.launch_token import TOKEN

NOT_FOR_SRUN = re.compile(r"(SLURM|SRUN|SALLOC|SBATCH|PMI)_(?!CONF$|JWT$)")
"""Options of the allocation, or of a step around the harness, that srun would take as its own."""

BUSY = 60
"""Seconds that srun may wait for the nodes: other steps of the job may use them."""
GRACE = 5.0
"""Seconds after the agent of one node has failed in which the others may report their failures."""
LEAVE = 10.0
"""Seconds that the agents have to leave once they must, before Slurm cancels the step."""
CANCEL_SECONDS = 0.5
COMMAND_LIMIT = 20
"""Seconds that a command of Slurm may take."""

AGENT_ENDED = re.compile(r"^srun: error: (\S+: tasks? (\d+)\S*: .*)", re.MULTILINE)
"""What srun prints when an agent has failed."""
REASONS = (
    re.compile(r"^srun: error: (?!\S+: tasks? )(.*)", re.MULTILINE),  # it could not start
    re.compile(r"^slurmstepd\S*: error: \*\*\* (.*) \*\*\*", re.MULTILINE),  # CANCELLED ...
    AGENT_ENDED,
)
"""Why a step has ended, the best reason first."""
LABELLED = re.compile(r" *(\d+): (.*)", re.DOTALL)
"""A line of an agent, as ``srun --label`` prints it."""


@dataclass
class Step:
    """The torchrun of a launch over several nodes: a step of a Slurm job."""

    srun: subprocess.Popen[bytes]
    job: str
    name: str
    folder: Path
    ranks_per_node: int
    failed: float | None = None
    """When the first agent failed, in monotonic seconds."""

    def poll(self) -> int | None:
        return self.srun.poll()

    def wait(self, timeout: float) -> int:
        """srun's exit code; ends the other agents if that of one node has failed."""
        try:
            return self.srun.wait(timeout)
        except subprocess.TimeoutExpired:
            if self.failed is None and AGENT_ENDED.search(self.log):
                self.failed = time.monotonic()
            if self.failed is None or time.monotonic() < self.failed + GRACE:
                raise
        self.end()
        return self.srun.wait(timeout)

    @property
    def log(self) -> str:
        """What srun and the agents have printed."""
        file = self.folder / "torchrun.log"
        return file.read_text(errors="replace") if file.is_file() else ""

    def dump_stacks(self) -> None:
        """Ask every rank of every node to dump its stack."""
        if self.srun.stdin:
            with suppress(OSError, ValueError):  # srun has ended
                os.write(self.srun.stdin.fileno(), node_agent.STACKS)

    def end(self) -> None:
        """End all agents and everything below them. srun returns when all of them have left."""
        if self.srun.stdin:
            self.srun.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.srun.wait(LEAVE)

    def finish(self) -> str:
        """Collect what the agents left; returns what is wrong if Slurm could not end the step."""
        lines = list[str]()
        if (self.srun.poll() or 0) < 0:  # somebody killed srun
            deadline = time.monotonic() + LEAVE
            words = ("--noheader", "--steps", f"--jobs={self.job}", "--format=%i %j")
            while time.monotonic() < deadline:
                lines = [line for line in _run("squeue", *words).splitlines() if self.name in line]
                if not lines:
                    break
                _run("scancel", *(line.split()[0] for line in lines))
                time.sleep(CANCEL_SECONDS)
        if self.folder.is_dir():
            self._collect()
        return f"Slurm could not end step {lines[0].split()[0]}" if lines else ""

    def _collect(self) -> None:
        """Make the agents' files look like the files of one agent: the log, and the folders of
        the ranks, which torchrun names by LOCAL_RANK."""
        with suppress(OSError), TemporaryDirectory(dir=self.folder):
            pass  # on NFS, this host sees what others wrote once it has changed the folder itself
        with suppress(OSError):
            (self.folder / "torchrun.log").write_text(by_node(self.log))
        (self.folder / node_agent.ENDPOINT).unlink(missing_ok=True)
        for folder in self.folder.glob("elastic/node_*/*/attempt_0/*"):
            node = int(folder.parts[-4].removeprefix("node_"))
            rank = node * self.ranks_per_node + int(folder.name)
            target = self.folder / "elastic" / "all" / "attempt_0" / str(rank)
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.rename(target)


def why(log: str) -> str:
    """Why a step has ended, from the log of srun."""
    cause = next(filter(None, (reason.search(log) for reason in REASONS)), None)
    return cause[1].strip() if cause else ""


def by_node(log: str) -> str:
    """A log of srun, sorted by node and without labels: agents write at the same time. The node
    that failed first comes last, as torchrun puts its root cause last."""
    blocks: dict[int, list[str]] = {-1: []}  # -1 is srun itself
    for line in log.splitlines(keepends=True):
        label = LABELLED.match(line)
        node, text = (int(label[1]), label[2]) if label else (-1, line)
        blocks.setdefault(node, []).append(text)
    failure = AGENT_ENDED.search(log)
    order = sorted(blocks, key=lambda node: (failure is not None and node == int(failure[2]), node))
    return "".join(line for node in order for line in blocks[node])


def start(
    python: str,
    nodes: int,
    ranks: int,
    folder: Path,
    environment: Mapping[str, str],
    arguments: Sequence[str],
    log: TextIO,
) -> Step:
    """Start a torchrun agent on each of ``nodes`` nodes of the allocation, for ``ranks`` ranks."""
    job, name = environment["SLURM_JOB_ID"], f"harness-{environment[TOKEN]}"
    (folder / node_agent.ENDPOINT).touch()
    srun = subprocess.Popen(
        [*srun_command(job, name, nodes), python, "-m", "harness.rank.node_agent", *arguments],
        env={key: v for key, v in environment.items() if not NOT_FOR_SRUN.match(key)},
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    )
    return Step(srun, job, name, folder, ranks // nodes)


def srun_command(job: str, name: str, nodes: int) -> list[str]:
    """srun, with one task on each of ``nodes`` nodes that may use all that the job has there.

    ``--overlap``: if the harness runs in a step itself, that one has the same cores. The settings
    of a cluster (WaitTime, KillOnBadExit) must not end the agents: the harness does.
    """
    return [
        "srun",
        f"--jobid={job}",
        f"--job-name={name}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        "--overlap",
        "--cpu-bind=none",
        "--mpi=none",
        "--export=ALL",
        "--label",
        "--wait=0",
        "--kill-on-bad-exit=0",
        f"--immediate={BUSY}",
    ]


def _run(*command: str) -> str:
    """The output of a command of Slurm; empty if it fails."""
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(
            command, capture_output=True, text=True, timeout=COMMAND_LIMIT, check=False
        ).stdout
    return ""
