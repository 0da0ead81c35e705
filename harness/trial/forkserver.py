"""A process that has imported once, and is forked for each trial of an overlay.

``python -m harness.trial.forkserver SOCKET WANTED`` imports torch and torch's own elastic agent; a
child of it imports upstream as well and serves, if that leaves a process that may be forked: with
no thread of upstream's, and CUDA not begun. Else the first one serves, and each rank imports
upstream itself. For a trial it forks an agent, which is torchrun (see ``agent``) and forks ranks.

It is started with the environment and the path of the ranks that it is forked for, so that they
get the same files as the ranks of a cold launch. Linux only; ``warm`` speaks to it.
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
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from harness.trial import agent, imports, orphans
from harness.trial.members import bear

MOST = 1 << 16
"""The longest request, in bytes."""

BEFORE_UPSTREAM = (
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "harness.trial.rank",
)
"""What torchrun and our own ranks import, some of it only once they are under way."""

LATER = ("torch._dynamo",)
"""What torch itself imports when a first optimizer is made, half a second of it."""

HUNG_UP = 9
"""The exit code of one that has served until the harness hung up: no import leaves with it."""

CUDA_NOT_BEGUN = 3
"""What CUDA's driver answers as long as nobody has initialised it (CUDA_ERROR_NOT_INITIALIZED)."""


def main(served: socket.socket, wanted: dict[str, Any]) -> None:
    """Import what is wanted, and serve until the harness hangs up."""
    seconds: dict[str, float] = {}
    start = time.monotonic()
    import torch  # noqa: F401

    for name in BEFORE_UPSTREAM:
        importlib.import_module(name)
    imports.set_aside()
    seconds["torch"] = time.monotonic() - start
    child = os.fork()
    if not child:
        if _import_upstream(wanted, seconds):
            Server(served, seconds).serve()
            os._exit(HUNG_UP)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status != HUNG_UP << 8:  # the ranks will meet what it has met, and say so where it belongs
        Server(served, seconds).serve()


def _import_upstream(wanted: dict[str, Any], seconds: dict[str, float]) -> bool:
    """Import upstream in this child; False, saying why, if it must not be forked after that."""
    os.environ[orphans.PARENT] = str(os.getppid())
    orphans.end_with_parent()
    start, threads = time.monotonic(), _threads()
    try:
        for name in filter(find_spec, LATER):  # torch 1 has none
            importlib.import_module(name)
        imports.upstream(tuple(wanted["shims"]), tuple(wanted["modules"]))
        importlib.import_module(wanted["scenario"])
    except BaseException:
        traceback.print_exc()
        return False
    if _threads() > threads or _cuda_begun():
        what = "CUDA was begun" if _cuda_begun() else f"{_threads() - threads} threads were started"
        print(f"harness: {what} by importing {', '.join(wanted['modules'])}: each rank does so")
        return False
    seconds["upstream"] = time.monotonic() - start
    return True


def _threads() -> int:
    """Threads of this process, those that Python does not know of included."""
    return len(os.listdir("/proc/self/task"))


def _cuda_begun() -> bool:
    """Whether CUDA was initialised in this process: then no child of it can use a GPU."""
    if "/libcuda.so" not in Path("/proc/self/maps").read_text(errors="replace"):
        return False
    context = ctypes.c_void_p()
    found = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return bool(found != CUDA_NOT_BEGUN)


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
    os.environ[orphans.PARENT] = str(os.getppid())
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
    orphans.end_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as harness:
        main(harness, json.loads(sys.argv[2]))
    os._exit(0)  # torch's teardown takes longer than a fork
