"""A real Slurm of two nodes on this machine: in one folder, on loopback, ended by process id.

python -m tests.slurm_cluster     # until Ctrl-C; prints the SLURM_CONF to use
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from harness.system.ports import number, reserve_port
from tests.sandbox import living

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
SBIN = "/usr/sbin"
"""Debian installs the daemons there; not every user has it on the PATH."""
PATH = f"{os.environ['PATH']}:{SBIN}"

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SwitchType=switch/none
MpiDefault=none
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
KillWait=8
MessageTimeout=10
SlurmdTimeout=6
InactiveLimit=0
{more}
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cores} State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cores} State=UNKNOWN
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


PR_SET_PDEATHSIG = 1


def _end_with_us() -> None:
    """Let a daemon end even if the tests are killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


def missing() -> str:
    """The programs of Slurm that are not installed; empty if all are."""
    return ", ".join(name for name in NEEDED if shutil.which(name, path=PATH) is None)


@dataclass
class Cluster:
    """The daemons of a cluster, and what a test does to them."""

    folder: Path
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def controller(self) -> None:
        """Start slurmctld."""
        self._start("slurmctld", ["slurmctld", "-D", "-f", str(self.conf)])

    def node(self, name: str, hidden: Path | None = None) -> None:
        """Start a node's slurmd, which sees an empty folder instead of ``hidden``."""
        command = ["slurmd", "-D", "-N", name, "-f", str(self.conf)]
        if hidden:
            script = f"mount -t tmpfs none {shlex.quote(str(hidden))} && exec {shlex.join(command)}"
            command = ["unshare", "--mount", "sh", "-c", script]
        self._start(name, command)

    def fail(self, name: str) -> None:
        """Let a node fail: kill its slurmd and all that it started."""
        tasks = self._started_by(name)
        steps = {task.ppid() for task in tasks}
        self.stop(name)
        for process in [*map(psutil.Process, steps), *tasks]:
            if process in tasks or process.name() == "slurmstepd":
                with suppress(psutil.NoSuchProcess):
                    process.kill()

    def stop(self, name: str, how: int = signal.SIGKILL) -> None:
        """End one daemon alone. Send SIGTERM to slurmctld: SIGKILL loses its last seconds."""
        daemon = self.daemons.pop(name)
        daemon.send_signal(how)
        daemon.wait()

    def _start(self, name: str, command: list[str], user: str | None = None) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SLURM_CONF": str(self.conf), "PATH": PATH},
                user=user,
                start_new_session=True,  # Ctrl-C is ours
                preexec_fn=_end_with_us,
            )

    def _started_by(self, node: str | None = None) -> list[psutil.Process]:
        """The processes of this cluster's tasks, on one node or on all."""

        def ours(process: psutil.Process) -> bool:
            its = process.environ()
            mine = its.get("SLURM_CONF") == str(self.conf) and "SLURM_JOB_ID" in its
            return mine and node in (None, its.get("SLURMD_NODENAME"))

        return living(ours)

    def ask(self, *command: str) -> str:
        """The output of a command of Slurm."""
        env = {**os.environ, "SLURM_CONF": str(self.conf)}
        process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
        return process.stdout

    def wait(self, nodes: int = 2) -> None:
        """Wait until so many nodes are idle; raises AssertionError after 30 s."""
        states = ""
        for _ in range(150):
            states = self.ask("sinfo", "--noheader", "--Node", "--format=%N %t")
            if sum(line.endswith(" idle") for line in states.splitlines()) >= nodes:
                return
            time.sleep(0.2)
        raise AssertionError(f"the cluster did not start: {states}; see {self.folder}")

    def down(self) -> None:
        """End the whole cluster."""
        self.ask("scancel", "--user=root" if os.getuid() == 0 else "--me")
        for name in [n for n in self.daemons if n != "munged"] + ["munged"]:
            if name in self.daemons:
                self.stop(name, signal.SIGTERM if name == "slurmctld" else signal.SIGKILL)
        for process in [*self._started_by(), *self._steps()]:
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def _steps(self) -> list[psutil.Process]:
        """The slurmstepds of this cluster: without a controller, they keep trying to reach it."""
        return living(
            lambda process: (
                process.environ().get("SLURM_CONF") == str(self.conf)
                and process.name().startswith("slurm")
            )
        )


@contextmanager
def cluster(cores: int = 2, lines: str = "") -> Iterator[Cluster]:
    """A cluster of two nodes; ``lines`` are added to its slurm.conf."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    folder.chmod(0o755)  # munged has a user of its own
    slurm = Cluster(folder)
    try:
        _authentication(slurm)
        ports = free_ports(3)
        user = "root" if os.getuid() == 0 else _name()
        host = socket.gethostname()
        text = CONF.format(
            host=host, ports=ports, user=user, folder=folder, cores=cores, more=lines
        )
        slurm.conf.write_text(text)
        slurm.controller()
        for name in ("n1", "n2"):
            slurm.node(name)
        slurm.wait()
        yield slurm
    finally:
        slurm.down()
        shutil.rmtree(folder, ignore_errors=True)


def _authentication(slurm: Cluster) -> None:
    """Start munged, as the user munge if we are root, otherwise as ourselves."""
    folder, user = slurm.folder / "munge", "munge" if os.getuid() == 0 else None
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    for path in (folder, key):
        if user:
            shutil.chown(path, user)
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
    options = [f"--{option}={folder / name}" for option, name in files.items()]
    slurm._start(
        "munged", ["munged", "--foreground", f"--seed-file={folder / 'seed'}", *options], user=user
    )
    for _ in range(100):
        if (folder / "socket").exists():
            return
        time.sleep(0.1)
    raise AssertionError(f"munged did not start: {(folder / 'log').read_text()}")


def _name() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


_KEEPERS: list[socket.socket] = []


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody else gets while this process lives."""
    keepers = [reserve_port() for _ in range(count)]
    _KEEPERS.extend(keepers)
    return [number(keeper) for keeper in keepers]


if __name__ == "__main__":
    with cluster() as simulated, suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        print(f"export SLURM_CONF={simulated.conf}", flush=True)
        signal.pause()
