"""Processes that have imported torch and upstream, as the harness has to do with them.

A ``TorchServer`` has imported torch. An ``OverlayServer`` was forked from it for an overlay and has
imported upstream. A ``ForkedLaunch`` is the torchrun of a trial, forked from that. See
``forkserver``.
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
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import psutil

from harness.trial.processes import NOBODYS, TOKEN

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
    files: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of the overlay's files as they were made; none where there is no overlay."""

    @property
    def key(self) -> str:
        """The same for servers that are the same."""
        return json.dumps(
            [self._given("HARNESS_LAUNCHED"), self.shims, self.modules, self.scenario]
        )

    @property
    def base(self) -> str:
        """The same where torch, imported for one, is probably good for the other; it is held
        against all that it has loaded before it is used."""
        own = ("HARNESS_LAUNCHED", "PYTHONPATH", "TORCH_EXTENSIONS_DIR")
        torchs = {f: sha for f, sha in self.files.items() if f.partition("/")[0] in TORCH_TAKES}
        return json.dumps([self._given(*own), sorted(torchs.items()) or self._given()])

    def _given(self, *less: str) -> list[tuple[str, str]]:
        return sorted((k, v) for k, v in self.environment.items() if k not in less)


TORCH_TAKES = ("numpy", "pynvml", "tqdm", "typing_extensions.py")
"""What torch imports of an overlay, as far as is known."""


class TorchServer:
    """A process that has imported torch, or is just importing it, and is forked for overlays."""

    def __init__(self, wanted: Wanted) -> None:
        self.environment = {**wanted.environment, TOKEN: NOBODYS}
        self.asked, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = _outliving_this_thread(
                [sys.executable, "-m", "harness.trial.forkserver", str(theirs.fileno())],
                env=self.environment,
                cwd=wanted.environment["PYTHONPATH"].partition(os.pathsep)[0],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End it, by its own will or against it; the servers that it was forked for end with it."""
        self.asked.close()
        try:
            self._process.wait(SHUTDOWN)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class OverlayServer:
    """A process that has imported, or is just importing, what a trial needs."""

    def __init__(self, root: TorchServer, wanted: Wanted) -> None:
        self.root, self.wanted = root, wanted
        self.forked: list[ForkedLaunch] = []
        self._pid = 0
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        asked = {
            "environment": changes(wanted.environment, root.environment),
            "shims": wanted.shims,
            "modules": wanted.modules,
            "scenario": wanted.scenario,
            "files": dict(wanted.files),
        }
        with theirs, tempfile.TemporaryFile() as said, tempfile.TemporaryFile("w") as told:
            json.dump(asked, told)
            told.flush()
            handles = [theirs.fileno(), said.fileno(), told.fileno()]
            with suppress(OSError):  # it is gone: so is this one
                socket.send_fds(root.asked, [b"overlay"], handles)

    @property
    def lives(self) -> bool:
        """Whether it serves, or will."""
        if self._socket.fileno() >= 0:
            self._hear(0)
        return self._socket.fileno() >= 0

    def _hear(self, seconds: float) -> None:
        """Take what it says in so many seconds: its process id, or nothing more at all."""
        self._socket.settimeout(seconds)
        with suppress(TimeoutError, BlockingIOError):
            while said := self._said():
                self._pid = int(said)
            self._socket.close()

    def _said(self) -> bytes:
        with suppress(ConnectionError):  # it is gone, and there is something that it has not read
            return self._socket.recv(64)
        return b""

    def start(
        self, folder: Path, environment: Mapping[str, str], arguments: Sequence[str], log: TextIO
    ) -> ForkedLaunch:
        """Have an agent forked that runs torchrun with these arguments, and its ranks."""
        heard, report = os.pipe()
        asked = {
            "folder": str(folder),
            "arguments": list(arguments),
            "token": environment[TOKEN],
            "environment": changes(environment, self.wanted.environment),
        }
        try:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], [log.fileno(), report])
        except OSError:
            pass  # it is gone: the trial ends as soon as somebody waits for it
        finally:
            os.close(report)
        forked = ForkedLaunch(self, heard)
        self.forked.append(forked)
        return forked

    @property
    def busy(self) -> bool:
        """Whether something that was forked there still runs."""
        return any(forked.poll() is None for forked in self.forked)

    def close(self) -> None:
        """End it, by its own will or against it, with all that it has forked."""
        if self.lives:
            self._socket.shutdown(socket.SHUT_WR)
            self._hear(SHUTDOWN)
            self.kill()

    def kill(self) -> None:
        """End it at once, and with it what it has forked."""
        if not self.lives:
            return
        if self._pid:
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
        else:  # its root has not come to it yet
            self.root.kill()
        self._hear(SHUTDOWN)


def changes(environment: Mapping[str, str], since: Mapping[str, str]) -> dict[str, str]:
    """What an environment has otherwise than another; the mark of a trial is put on otherwise."""
    return {k: v for k, v in environment.items() if k != TOKEN and since.get(k) != v}


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


class ForkedLaunch:
    """The agent of a trial that was forked: waited for as for a process of one's own."""

    def __init__(self, server: OverlayServer, heard: int) -> None:
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
