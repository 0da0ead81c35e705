"""The fork server: a process that imports torch and upstream once, and forks each launch.

``python -m harness.rank.forkserver`` imports torch, torch's elastic agent and upstream. It is
forked for each launch: the child is an agent, which runs torchrun (see ``agent``) and forks the
ranks.

Each later import is done in a child first. If the import has started a thread or initialised CUDA,
the child must not be forked, and its parent serves without the import.

The server runs with the environment and path of its ranks, so ranks load the same files as in a
cold launch. Linux only; ``server_pool`` is the harness's side.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
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
from typing import Any

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


Seconds = dict[str, float]
"""The import times of a server: ``torch`` and ``upstream``."""


@contextlib.contextmanager
def _timed(seconds: Seconds, stage: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    seconds[stage] = seconds.get(stage, 0.0) + time.monotonic() - start


def main(harness: socket.socket, needs: dict[str, Any]) -> None:
    """Import what is needed, then serve launches until the harness closes its socket."""
    site = Path(os.environ["PYTHONPATH"].partition(os.pathsep)[0])
    seconds: Seconds = {}
    bytecode.keep(site)
    with _timed(seconds, "torch"), forks.importing():
        import torch  # noqa: F401

        for name in BEFORE_UPSTREAM:
            importlib.import_module(name)

    def import_later() -> None:
        with _timed(seconds, "torch"):
            if find_spec(LATER):  # torch 1 does not have it
                importlib.import_module(LATER)

    def import_upstream() -> None:
        with _timed(seconds, "upstream"):
            shims.import_upstream(needs["shims"], needs["modules"])
            for scenario in needs["scenarios"]:
                importlib.import_module(scenario)
            loaded_files.files(site)  # caches their hashes, which each rank records

    server = Server(harness, seconds)
    _serve_after(import_later, lambda: _serve_after(import_upstream, server.serve))


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


@dataclass
class Server:
    """Forks an agent for each request, and reports how it ended."""

    served: socket.socket
    seconds: Seconds
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
        main(harness, json.loads(sys.argv[2]))
    os._exit(0)  # without torch's slow teardown
