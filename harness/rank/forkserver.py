"""The fork servers: processes that import once, and fork a child for each overlay and launch.

``python -m harness.rank.forkserver`` imports torch and torch's elastic agent. It is forked for
each overlay: the child imports upstream. That child is forked for each launch: its child is an
agent, which runs torchrun (see ``agent``) and forks the ranks.

Each import is done in a child first. If the import has started a thread or initialised CUDA, the
child must not be forked, and its parent serves without the import.

The first server runs with the environment and path of ranks, as torch imports numpy from an
overlay. It serves another overlay only if that contains the same files (see ``rebase``); otherwise
the child becomes a new interpreter. So ranks load the same files as in a cold launch. Linux only;
``server_pool`` is the harness's side.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from harness.rank import bytecode, forks, loaded_files, shims, supervisor
from harness.rank.forks import Child, Children
from harness.system.launch_token import set_token

MOST = 1 << 16
"""The longest request, in bytes."""

BEFORE_UPSTREAM = (
    "torch.distributed.run",
    "torch.distributed.elastic.agent.server.local_elastic_agent",
    "torch.distributed.elastic.rendezvous.c10d_rendezvous_backend",
    "harness.rank.scenario",
)
"""Modules that torchrun and our ranks import, some of them only when they run."""

LATER = "torch._dynamo"
"""Torch imports this when it constructs the first optimizer, which takes half a second."""

SERVED = 9
"""The exit code of a child that has served until the harness closed its socket."""

CUDA_ERROR_NOT_INITIALIZED = 3


@dataclass
class Base:
    """What a process has imported before it serves."""

    site: Path
    """The site-packages of the overlay that comes first on its path."""
    listener: loaded_files.Listener = field(default_factory=loaded_files.listen)
    seconds: dict[str, float] = field(default_factory=dict)
    """The import times: ``torch`` and ``upstream``."""

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.monotonic() - start


def main(harness: socket.socket, overlay: dict[str, Any] | None = None) -> None:
    """Import torch, then serve all overlays, or only ``overlay``, until the harness closes its
    socket."""
    base = Base(_site())
    bytecode.keep(base.site)
    _import_torch(base)

    def serve() -> None:
        if overlay is None:
            _serve_overlays(harness, base)
        else:
            _serve_launches(harness, overlay, base)

    _serve_after(lambda: _import_later(base), serve)


def _site() -> Path:
    return Path(os.environ["PYTHONPATH"].partition(os.pathsep)[0])


def _import_torch(base: Base) -> None:
    with base.timed("torch"), forks.importing():
        import torch  # noqa: F401

        for name in BEFORE_UPSTREAM:
            importlib.import_module(name)


def _serve_after(step: Callable[[], None], serve: Callable[[], None]) -> None:
    """Run a step in a child and serve there. If the step makes the child unfit, serve here."""

    def attempt() -> None:
        if _fit_after(step):
            serve()
            raise SystemExit(SERVED)

    if forks.exit_code(attempt) != SERVED:  # the ranks will fail in the same way, and report it
        serve()


def _fit_after(step: Callable[[], None]) -> bool:
    """Run a step; returns whether this process may be forked afterwards, and prints why not."""
    threads = _threads()
    try:
        with forks.importing():
            step()
    except BaseException:
        traceback.print_exc()
        return False
    started = _threads() - threads
    if _cuda_initialised():
        effect = "initialised CUDA"
    elif started:
        effect = f"started threads ({', '.join(started)})"
    else:
        return True
    print(f"harness: an import {effect}: each rank has to import by itself", flush=True)
    return False


def _threads() -> Counter[str]:
    """The threads of this process by name, including those that Python does not know."""
    return Counter(file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm"))


def _cuda_initialised() -> bool:
    """Whether CUDA is initialised in this process. If so, its children cannot use a GPU."""
    if "/libcuda.so" not in Path("/proc/self/maps").read_text(errors="replace"):
        return False
    context = ctypes.c_void_p()
    status = ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context))
    return bool(status != CUDA_ERROR_NOT_INITIALIZED)


def _import_later(base: Base) -> None:
    with base.timed("torch"):
        if find_spec(LATER):  # torch 1 does not have it
            importlib.import_module(LATER)


def _serve_overlays(harness: socket.socket, base: Base) -> None:
    """Fork a server for each request, until the harness closes its socket."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps them
    while True:
        message, handles, _, _ = socket.recv_fds(harness, MOST, 3)
        if not message:
            return
        served, output, request = handles
        serve = partial(_serve_overlay, harness, base, served, request)
        forks.fork(serve, (output, output), session=True)
        for handle in handles:
            os.close(handle)


def _serve_overlay(harness: socket.socket, base: Base, handle: int, request: int) -> None:
    """Serve one overlay. ``request`` is an open file."""
    harness.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    overlay = json.loads(os.pread(request, os.fstat(request).st_size, 0))
    os.environ.update(overlay["environment"])
    site, files = _site(), overlay["files"]
    bytecode.keep(site)
    with socket.socket(fileno=handle) as served:
        served.send(str(os.getpid()).encode())
        if site != base.site and not loaded_files.are_same(
            base.site, site, base.listener.asked, files
        ):
            _restart(served, overlay)
        if site != base.site:
            loaded_files.rebase(base.site, site)
        _serve_launches(served, overlay, base)


def _restart(served: socket.socket, overlay: dict[str, Any]) -> NoReturn:
    """Replace this process by a new interpreter that serves the overlay."""
    served.set_inheritable(True)
    request = json.dumps({**overlay, "files": {}})
    command = [sys.executable, "-m", "harness.rank.forkserver", str(served.fileno()), request]
    os.execve(sys.executable, command, os.environ)


def _serve_launches(served: socket.socket, overlay: dict[str, Any], base: Base) -> None:
    """Import upstream, and serve its launches until the harness closes its socket."""
    server = Server(served, base.seconds)
    _serve_after(lambda: _import_upstream(overlay, base), server.serve)


def _import_upstream(overlay: dict[str, Any], base: Base) -> None:
    with base.timed("upstream"):
        shims.import_upstream(overlay["shims"], overlay["modules"])
        for scenario in overlay["scenarios"]:
            importlib.import_module(scenario)
        loaded_files.files(_site())  # caches their hashes, which each rank records


@dataclass
class Server:
    """Forks an agent for each request, and reports how it ended."""

    served: socket.socket
    seconds: dict[str, float]
    """The import times: ``torch`` and ``upstream``."""
    reports: dict[Child, int] = field(default_factory=dict)
    """By the keeper of a launch, the pipe that gets its exit code."""

    def serve(self) -> None:
        """Serve until the harness closes its socket. Launches that still run then end as well."""
        # No context: a keeper must not be killed before it has cleaned up.
        keepers = Children(self.served)
        while True:
            for keeper, _ in keepers.hear():
                self._report(self.reports[keeper], {"code": keeper.code})
                os.close(self.reports.pop(keeper))
            message, handles, _, _ = socket.recv_fds(self.served, MOST, 2)
            if not message:
                return
            log, report = handles
            with contextlib.suppress(OSError):  # a full disk
                os.write(log, os.pread(1, os.fstat(1).st_size, 0))  # what the imports printed
            start = partial(self._start_agent, json.loads(message), report)
            keeper = keepers.start(start, (log, log), session=True)
            os.close(log)
            self.reports[keeper] = report
            self._report(report, {"pid": keeper.pid, "seconds": self.seconds})

    def _report(self, pipe: int, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # nobody waits for it now
            forks.send(pipe, message)

    def _start_agent(self, request: dict[str, Any], report: int) -> None:
        """Run torchrun, in a folder and environment of its own."""
        for handle in (self.served.fileno(), report, *self.reports.values()):
            os.close(handle)  # their readers must notice when this server ends
        os.chdir(request["folder"])
        set_token(request["token"])
        os.environ.update(request["environment"])
        importlib.import_module(request["agent"]).main(request["arguments"])


if __name__ == "__main__":
    supervisor.end_with_parent()
    supervisor.set_name("forkserver")
    with socket.socket(fileno=int(sys.argv[1])) as harness:
        main(harness, *map(json.loads, sys.argv[2:]))
    os._exit(0)  # without torch's slow teardown
