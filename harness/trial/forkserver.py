"""Processes that have imported once, and are forked for each overlay and for each trial.

``python -m harness.trial.forkserver`` imports torch and torch's own elastic agent. For an overlay
it is forked: the child imports upstream, and is forked for each trial of that overlay. What comes
of that is an agent, which is torchrun (see ``agent``) and forks the ranks.

A step that leaves a process which must not be forked is undone: it is taken in a child, and where
that has started a thread or begun CUDA, its parent serves without it. It is started with the
environment and the path of ranks, as torch takes numpy from an overlay; another overlay is served
only if it has the same (see ``rebase``), else by an interpreter of its own. So ranks get the same
files as in a cold launch. Linux only; ``servers`` speaks to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from harness.trial import agent, imports, supervisor
from harness.trial.processes import bear
from harness.upstream import bytecode, loaded, rebase

MOST = 1 << 16
"""The longest request, in bytes."""

BEFORE_UPSTREAM = (
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "harness.trial.rank",
)
"""What torchrun and our own ranks import, some of it only once they are under way."""

LATER = "torch._dynamo"
"""What torch itself imports when the first optimizer is made: that takes half a second."""

HUNG_UP = 9
"""The exit code of one that has served until the harness hung up: no import leaves with it."""

CUDA_NOT_BEGUN = 3
"""What CUDA's driver answers as long as nobody has initialised it (CUDA_ERROR_NOT_INITIALIZED)."""


@dataclass
class Base:
    """What a process has imported before it serves."""

    site: Path
    """The overlay that comes first on its path."""
    listener: rebase.Listener = field(default_factory=rebase.listen)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long it took, by ``torch`` and ``upstream``."""

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[what] = self.seconds.get(what, 0.0) + time.monotonic() - start


def main(harness: socket.socket, wanted: dict[str, Any] | None = None) -> None:
    """Import torch, and serve all overlays that are asked for, or the one that is wanted, until the
    harness hangs up."""
    base = Base(_site())
    bytecode.keep(base.site)
    _import_torch(base)

    def serve() -> None:
        if wanted is None:
            _serve_overlays(harness, base)
        else:
            _serve_trials(harness, wanted, base)

    _further(lambda: _import_later(base), serve)


def _site() -> Path:
    return Path(os.environ["PYTHONPATH"].partition(os.pathsep)[0])


def _import_torch(base: Base) -> None:
    with base.timed("torch"):
        import torch  # noqa: F401

        for name in BEFORE_UPSTREAM:
            importlib.import_module(name)
    imports.set_aside()


def _further(step: Callable[[], None], serve: Callable[[], None]) -> None:
    """Have a child go one step further and serve; where that must not be, serve here."""
    child = os.fork()
    if not child:
        os.environ[supervisor.PARENT] = str(os.getppid())
        supervisor.end_with_parent()
        if _fit_after(step):
            serve()
            os._exit(HUNG_UP)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status != HUNG_UP << 8:  # the ranks will meet what it has met, and say so where it belongs
        serve()


def _fit_after(step: Callable[[], None]) -> bool:
    """Take a step; whether this process may be forked after it, and if not, why is printed."""
    threads = _threads()
    try:
        step()
    except BaseException:
        traceback.print_exc()
        return False
    started = _threads() - threads
    if started or _cuda_begun():
        what = "CUDA was begun" if _cuda_begun() else f"threads were started ({', '.join(started)})"
        print(f"harness: {what} by an import: each rank has to do it by itself", flush=True)
        return False
    imports.set_aside()
    return True


def _threads() -> Counter[str]:
    """The threads of this process by their names, those that Python does not know of included."""
    return Counter(file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm"))


def _cuda_begun() -> bool:
    """Whether CUDA was initialised in this process: then no child of it can use a GPU."""
    if "/libcuda.so" not in Path("/proc/self/maps").read_text(errors="replace"):
        return False
    context = ctypes.c_void_p()
    found = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return bool(found != CUDA_NOT_BEGUN)


def _import_later(base: Base) -> None:
    with base.timed("torch"):
        if find_spec(LATER):  # torch 1 has none
            importlib.import_module(LATER)


def _serve_overlays(asked: socket.socket, base: Base) -> None:
    """Fork a server for each overlay that is asked for, until the harness hangs up."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them here
    while True:
        message, handles, _, _ = socket.recv_fds(asked, MOST, 3)
        if not message:
            return
        if not os.fork():
            asked.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _be_the_overlays(base, *handles)
        for handle in handles:
            os.close(handle)


def _be_the_overlays(base: Base, handle: int, said: int, told: int) -> NoReturn:
    """Be the server of an overlay, in a session of its own."""
    os.setsid()
    wanted = json.loads(os.pread(told, os.fstat(told).st_size, 0))
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ.update(wanted["environment"])
    os.environ[supervisor.PARENT] = str(os.getppid())
    supervisor.end_with_parent()
    site, files = _site(), wanted["files"]
    bytecode.keep(site)
    with socket.socket(fileno=handle) as served:
        served.send(str(os.getpid()).encode())
        if site != base.site and not rebase.same(base.site, site, base.listener.asked, files):
            _anew(served, wanted)
        if site != base.site:
            rebase.rebase(base.site, site)
        _serve_trials(served, wanted, base)
    os._exit(0)


def _anew(served: socket.socket, wanted: dict[str, Any]) -> NoReturn:
    """Serve an overlay by an interpreter of its own: this process, started anew."""
    served.set_inheritable(True)
    told = json.dumps({**wanted, "files": {}})
    command = [sys.executable, "-m", "harness.trial.forkserver", str(served.fileno()), told]
    os.execve(sys.executable, command, os.environ)


def _serve_trials(served: socket.socket, wanted: dict[str, Any], base: Base) -> None:
    """Import upstream, and serve its trials until the harness hangs up."""
    _further(lambda: _import_upstream(wanted, base), lambda: Server(served, base.seconds).serve())


def _import_upstream(wanted: dict[str, Any], base: Base) -> None:
    with base.timed("upstream"):
        imports.upstream(tuple(wanted["shims"]), tuple(wanted["modules"]))
        importlib.import_module(wanted["scenario"])
        loaded.files(_site())  # each rank will be asked for their hashes


@dataclass
class Server:
    """Forks an agent for each request, and reports how it ended."""

    served: socket.socket
    seconds: dict[str, float]
    """What it took to import what is there already."""
    reports: dict[int, int] = field(default_factory=dict)
    """By the process id of an agent's keeper, where to say how it ended."""

    def serve(self) -> None:
        """Serve until the harness hangs up; what still runs then ends with this process."""
        heard, wakes = socket.socketpair()
        wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno())
        with selectors.DefaultSelector() as ready:
            ready.register(self.served, selectors.EVENT_READ)
            ready.register(heard, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fileobj is heard:
                        heard.recv(MOST)
                        self._reap()
                    elif not self._take():
                        return

    def _take(self) -> bool:
        """Take one request; False if the harness has hung up."""
        message, handles, _, _ = socket.recv_fds(self.served, MOST, 2)
        if not message:
            return False
        log, report = handles
        child = os.fork()
        if not child:
            for handle in (self.served.fileno(), report, *self.reports.values()):
                os.close(handle)  # who waits for them must see when this process is gone
            _become(json.loads(message), log)
        os.close(log)
        self.reports[child] = report
        self._say(child, {"pid": child, "seconds": self.seconds})
        return True

    def _reap(self) -> None:
        for child in list(self.reports):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                self._say(child, {"code": os.waitstatus_to_exitcode(status)})
                os.close(self.reports.pop(child))

    def _say(self, child: int, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody waits for it any more
            os.write(self.reports[child], json.dumps(what).encode() + b"\n")


def _become(asked: dict[str, Any], log: int) -> NoReturn:
    """Be the agent of a trial: in a session, a folder and an environment of its own."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    _keep_what_imports_said(log)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.chdir(asked["folder"])
    bear(asked["token"])
    os.environ.update(asked["environment"])
    os.environ[supervisor.PARENT] = str(os.getppid())
    code = 1
    try:
        agent.main(asked["arguments"])
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _keep_what_imports_said(log: int) -> None:
    """What was said while importing went to a file of ours: it belongs to each trial's log."""
    os.write(log, os.pread(1, os.fstat(1).st_size, 0))


if __name__ == "__main__":
    supervisor.end_with_parent()
    supervisor.go_by("forkserver")
    with socket.socket(fileno=int(sys.argv[1])) as harness:
        main(harness, *map(json.loads, sys.argv[2:]))
    os._exit(0)  # torch's teardown takes longer than a fork
