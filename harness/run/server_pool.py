"""The servers of a command: processes that import once, and fork launches, for all its runs.

An ``OverlayServer`` has imported torch and upstream, and runs ``forkserver``. A ``ForkedLaunch`` is
the torchrun of a launch, forked from a server. A ``Pool`` keeps the servers of a command.
"""

from __future__ import annotations

import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

from harness.rank import supervisor
from harness.rank.forks import Messages
from harness.system.launch_token import NO_TOKEN, TOKEN

LOST_AFTER = 5.0
"""Seconds after which a rank counts as lost, if it is gone and torchrun still waits for it."""

AGENT = "harness.rank.agent"
"""The module that runs torchrun."""

SHUTDOWN, ENDING = 5.0, 0.2
"""Seconds that a server has to end by itself; and after it has closed its socket."""


@dataclass(frozen=True)
class Wanted:
    """What a server must have imported, and in which environment."""

    environment: Mapping[str, str]
    shims: tuple[str, ...]
    modules: tuple[str, ...]
    scenarios: tuple[str, ...]
    """The names of the scenarios' own modules."""
    python: str = sys.executable
    """The interpreter."""

    @property
    def key(self) -> str:
        """Equal for two needs that the same server meets."""
        variables = {k: v for k, v in self.environment.items() if k != "HARNESS_LAUNCHED"}
        imported = self.shims, self.modules, self.scenarios
        return json.dumps([self.python, sorted(variables.items()), *imported])


class OverlayServer:
    """A process that has imported, or is importing, what the launches of an overlay need."""

    def __init__(self, needs: Wanted) -> None:
        self.wanted = needs
        self.forked: list[ForkedLaunch] = []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this object
        imported = {"shims": needs.shims, "modules": needs.modules, "scenarios": needs.scenarios}
        command = [needs.python, "-m", "harness.rank.forkserver", str(theirs.fileno())]
        with theirs:
            self._process = _start_in_a_lasting_thread(
                [*command, json.dumps(imported)],
                env={**needs.environment, TOKEN: NO_TOKEN},
                cwd=needs.environment["PYTHONPATH"].partition(os.pathsep)[0],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def alive(self) -> bool:
        """Whether it serves, or will once it has imported."""
        return self._process.poll() is None

    @property
    def complaint(self) -> str:
        """The last line that it printed before it failed by itself, as where torch is broken."""
        with suppress(subprocess.TimeoutExpired):  # its socket is closed before it has ended
            self._process.wait(ENDING)
        if (self._process.returncode or 0) <= 0:
            return ""
        self._output.seek(0)
        lines = self._output.read().decode(errors="replace").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def start(
        self,
        folder: Path,
        environment: Mapping[str, str],
        arguments: Sequence[str],
        log: TextIO,
        agent: str = AGENT,
    ) -> ForkedLaunch:
        """Fork torchrun with these arguments, in ``folder``, with its output in ``log``.

        ``agent`` is the module whose ``main`` starts the ranks.
        """
        reports, theirs = os.pipe()
        request = {
            "folder": str(folder),
            "agent": agent,
            "arguments": list(arguments),
            "token": environment[TOKEN],
            "environment": changes(environment, self.wanted.environment),
        }
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode()], [log.fileno(), theirs])
        except OSError:
            pass  # it has ended: so the launch ends as soon as it is polled
        finally:
            os.close(theirs)
        forked = ForkedLaunch(self, reports)
        self.forked = [one for one in self.forked if one.poll() is None] + [forked]
        return forked

    @property
    def busy(self) -> bool:
        """Whether a launch that was forked from it still runs."""
        return any(forked.poll() is None for forked in self.forked)

    def close(self) -> None:
        """Let it end, and kill it if it does not, with everything forked from it."""
        with suppress(OSError):  # it has ended meanwhile
            self._socket.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(SHUTDOWN)
        except subprocess.TimeoutExpired:
            self.kill()
        self._socket.close()

    def kill(self) -> None:
        """Kill it; everything that was forked from it ends with it (see ``supervisor``)."""
        self._process.kill()
        self._process.wait()


def changes(environment: Mapping[str, str], base: Mapping[str, str]) -> dict[str, str]:
    """The variables that differ from ``base``, without those that a forked process sets itself."""
    excluded_names = (TOKEN, supervisor.PARENT)
    return {k: v for k, v in environment.items() if k not in excluded_names and base.get(k) != v}


def _start_in_a_lasting_thread(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process from a thread that lives until the process ends.

    The kernel signals the process when the thread that started it ends (see ``supervisor``), and
    the calling thread may end long before.
    """
    process: Future[subprocess.Popen[bytes]] = Future()

    def live() -> None:
        try:
            process.set_result(subprocess.Popen(command, **options))
        except BaseException as error:
            process.set_exception(error)
        else:
            process.result().wait()

    threading.Thread(target=live, name="forkserver", daemon=True).start()
    return process.result()


class ForkedLaunch:
    """The torchrun of a launch, forked from a server; used like a ``subprocess.Popen``."""

    def __init__(self, server: OverlayServer, reports: int) -> None:
        self.server = server
        self.seconds: Mapping[str, float] = {}
        """The import times of the server: ``torch`` and ``upstream``."""
        self.pid = 0
        """The process id of the keeper, as soon as the server reports it."""
        self._incomplete_since = math.inf
        self._next_check = 0.0
        self._code: int | None = None
        self._reports = Messages(reports)
        self._lock = threading.RLock()  # a pool polls what a thread waits for

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        with self._lock:
            while self._code is None:
                reports = self._reports.read()
                if reports is None:  # the server has ended, with everything that was forked from it
                    self._end(-signal.SIGKILL)
                elif not reports:
                    return None
                for report in reports or ():
                    if "code" in report:
                        self._end(report["code"])
                    else:
                        self.pid, self.seconds = report["pid"], report["seconds"]
            return self._code

    def wait(self, timeout: float) -> int:
        """Its exit code; raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as ready:
            with self._lock:
                if self._code is None:
                    ready.register(self._reports.pipe, selectors.EVENT_READ)
            while (code := self.poll()) is None:
                seconds = deadline - time.monotonic()
                if seconds <= 0:
                    raise subprocess.TimeoutExpired("forked", timeout)
                ready.select(seconds)
        return code

    def _end(self, code: int) -> None:
        self._code = code
        os.close(self._reports.pipe)

    def cancel(self) -> None:
        """Make sure that it does not start later: kill a server that has not forked it yet."""
        if self.poll() is None and not self.pid:
            self.server.kill()

    def lost_a_rank(self, ranks: int) -> bool:
        """Whether one of ``ranks`` started ranks has been gone for LOST_AFTER seconds.

        torchrun waits forever for the value that the function of such a rank should return. Checks
        once a second at most.
        """
        moment = time.monotonic()
        if moment < self._next_check or not self.pid:
            return False
        self._next_check = moment + 1
        complete = _grandchildren(self.pid) >= ranks
        self._incomplete_since = math.inf if complete else min(self._incomplete_since, moment)
        return moment - self._incomplete_since > LOST_AFTER


def _grandchildren(pid: int) -> int:
    """The number of living processes that the children of this process have started."""
    try:
        agents = psutil.Process(pid).children()
        ranks = [rank for agent in agents for rank in agent.children()]
        return sum(rank.status() != psutil.STATUS_ZOMBIE for rank in ranks)
    except psutil.NoSuchProcess:
        return 0


SERVERS_A_RUN = 4
"""The most overlays that the variants of most scenarios have. A server takes 0.3 to 0.7 GB."""


@dataclass
class Pool:
    """The most recently used servers of a command, at most ``most`` of them.

    Threads may share a pool. Leaving its context ends all servers.
    """

    most: int = 2 * SERVERS_A_RUN
    _servers: OrderedDict[str, OverlayServer] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def server(self, needs: Wanted) -> OverlayServer:
        """The server that has imported what is needed; starts one if there is none yet."""
        with self._lock:
            server = self._servers.pop(needs.key, None)
            if server is None or not server.alive:
                server = OverlayServer(needs)
            idle = [each for each in self._servers.values() if not each.busy]
            spare = idle[: max(0, len(self._servers) + 1 - self.most)]
            for each in spare:
                del self._servers[each.wanted.key]
            self._servers[needs.key] = server
        for each in spare:
            each.close()
        return server

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            ending = list(self._servers.values())
            self._servers.clear()
        for server in ending:
            server.close()
