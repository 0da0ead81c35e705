"""Processes that have imported torch and upstream, kept for the trials that are to come.

A ``Server`` is one such process, for one overlay (see ``forkserver``); a ``Pool`` keeps those of a
command. A trial that is forked there is supervised by torchrun as any other, and ends as any other.
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
from types import TracebackType
from typing import Any, TextIO

import psutil

from harness.trial.members import NOBODYS, TOKEN

SERVERS_A_RUN = 4
"""How many overlays the variants of most scenarios have; the server of each takes 0.3 to 0.7 GB."""

DESERTED = 5.0
"""Seconds after which a rank that is gone was not missed by torchrun."""

SHUTDOWN = 5.0
"""Seconds that a server has to end by itself."""


@dataclass(frozen=True)
class Wanted:
    """What a server is to have imported, and the environment in which."""

    environment: Mapping[str, str]
    shims: tuple[str, ...]
    modules: tuple[str, ...]
    scenario: str
    """The scenario's own module."""

    @property
    def key(self) -> str:
        """The same for servers that are the same."""
        environment = {**self.environment, "HARNESS_LAUNCHED": ""}
        return json.dumps([environment, self.shims, self.modules, self.scenario], sort_keys=True)


class Server:
    """A process that has imported, or is just importing, what a trial needs."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.forked: list[Forked] = []
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, tempfile.TemporaryFile() as said:
            self._process = _outliving_this_thread(
                self._command(theirs.fileno()), env={**wanted.environment, TOKEN: NOBODYS},
                cwd=wanted.environment["PYTHONPATH"].partition(os.pathsep)[0],
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip

    def _command(self, handle: int) -> list[str]:
        wanted = {
            "shims": self.wanted.shims, "modules": self.wanted.modules,
            "scenario": self.wanted.scenario,
        }  # fmt: skip
        module = "harness.trial.forkserver"
        return [sys.executable, "-m", module, str(handle), json.dumps(wanted)]

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def start(
        self, folder: Path, environment: Mapping[str, str], arguments: Sequence[str], log: TextIO
    ) -> Forked:
        """Have an agent forked that runs torchrun with these arguments, and its ranks.

        ``environment`` says what differs from the server's own, the trial's mark included.
        """
        heard, report = os.pipe()
        asked = {
            "folder": str(folder), "arguments": list(arguments), "token": environment[TOKEN],
            "environment": {
                name: value for name, value in environment.items()
                if name != TOKEN and self.wanted.environment.get(name) != value
            },
        }  # fmt: skip
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [log.fileno(), report])
        except OSError:
            pass  # it is gone: the trial ends as soon as somebody waits for it
        finally:
            os.close(report)
        forked = Forked(self, heard)
        self.forked.append(forked)
        return forked

    @property
    def busy(self) -> bool:
        """Whether something that was forked there still runs."""
        return any(forked.poll() is None for forked in self.forked)

    def close(self) -> None:
        """End it, by its own will or against it, with all that it has forked."""
        self._socket.close()
        try:
            self._process.wait(SHUTDOWN)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once: what it has forked ends with it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def _outliving_this_thread(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process from a thread that lives until the process ends.

    The process is sent a signal when the thread ends that has started it (see ``orphans``): the one
    that asks may end long before it.
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


class Forked:
    """The agent of a trial that was forked: waited for as for a process of one's own."""

    def __init__(self, server: Server, heard: int) -> None:
        self.server = server
        self.seconds: Mapping[str, float] = {}
        """What it took to import what was there when it was forked."""
        self.pid = 0
        """Of the agent's keeper, as soon as it is there."""
        self._incomplete = math.inf
        self._next_look = 0.0
        self._code: int | None = None
        self._heard = heard
        self._said = b""
        os.set_blocking(heard, False)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        while self._code is None:
            try:
                said = os.read(self._heard, 4096)
            except BlockingIOError:
                return None
            if not said:  # the server is gone, and all that it has forked
                self._end(-signal.SIGKILL)
            *lines, self._said = (self._said + said).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        return self._code

    def wait(self, timeout: float) -> int:
        """Its exit code; raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as ready:
            if self._code is None:
                ready.register(self._heard, selectors.EVENT_READ)
            while (code := self.poll()) is None:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise subprocess.TimeoutExpired("forked", timeout)
                ready.select(left)
        return code

    def _take(self, told: dict[str, Any]) -> None:
        if "code" in told:
            self._end(told["code"])
        else:
            self.pid, self.seconds = told["pid"], told["seconds"]

    def _end(self, code: int) -> None:
        self._code = code
        os.close(self._heard)

    def give_up(self) -> None:
        """See to it that it is not started any more, where the server has not come to it yet."""
        self.poll()
        if not self.pid:
            self.server.kill()

    def deserted(self, ranks: int) -> bool:
        """Whether one of so many ranks, which were all started, has left without a word.

        torchrun goes on waiting for what the function of such a rank would have returned.
        """
        now = time.monotonic()
        if now < self._next_look or not self.pid:
            return False
        self._next_look = now + 1
        living = _grandchildren(self.pid)
        self._incomplete = math.inf if living >= ranks else min(self._incomplete, now)
        return now - self._incomplete > DESERTED


def _grandchildren(pid: int) -> int:
    """How many processes the children of this one have started, and live."""
    try:
        agents = psutil.Process(pid).children()
        found = [rank for agent in agents for rank in agent.children()]
        return sum(rank.status() != psutil.STATUS_ZOMBIE for rank in found)
    except psutil.NoSuchProcess:
        return 0


@dataclass
class Pool:
    """The servers of a command: those that were used last, at most ``most`` of them.

    Threads may share one. Leaving its context ends all servers.
    """

    most: int = 2 * SERVERS_A_RUN
    _servers: OrderedDict[str, Server] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def server(self, wanted: Wanted) -> Server:
        """The server that has imported what is wanted; started now where there is none yet."""
        with self._lock:
            found = self._servers.pop(wanted.key, None)
            if found is None or not found.lives:
                found = Server(wanted)
            self._servers[wanted.key] = found
            idle = [s for s in self._servers.values() if s is not found and not s.busy]
            spare = idle[: max(0, len(self._servers) - self.most)]
            for server in spare:
                del self._servers[server.wanted.key]
        for server in spare:
            server.close()
        return found

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._lock:
            servers = list(self._servers.values())
            self._servers.clear()
        for server in servers:
            server.close()
