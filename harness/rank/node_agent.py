"""The torchrun agent of one of several nodes: ``python -m harness.rank.node_agent``.

It is a task of a Slurm step (see ``nodes``) and takes torchrun's own arguments. Its standard input
comes from the harness. The keeper (see ``supervisor``) reads that input, and kills everything below
when the input ends.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.rank import supervisor
from harness.system.ports import number, reserve_port

STACKS = b"stacks\n"
"""The order to dump the stacks of all ranks."""

ENDPOINT = "endpoint"
"""The file in the launch's folder with the address and port of the first node's store. The harness
creates it empty: on NFS, opening an existing file shows its newest content."""

POLL_SECONDS = 0.05


def main(arguments: Sequence[str]) -> None:
    """Run torchrun in a child of this process; returns in that child, once torchrun has ended."""
    os.environ.pop(supervisor.PARENT, None)  # it is on another node; the end of the input is enough
    os.environ["HARNESS_LAUNCHED"] = repr(time.monotonic())  # each node has a clock of its own
    supervisor.keep(partial(_obey, _take_input()))
    node, name = int(os.environ["SLURM_PROCID"]), os.environ["SLURMD_NODENAME"]
    if node == 0:
        keeper = reserve_port("")
        Path(ENDPOINT).write_text(f"{_address(name)}:{number(keeper)}")
    endpoint = _endpoint()
    for variable in [v for v in os.environ if v.startswith("SLURM")]:
        del os.environ[variable]  # they would describe this agent, not its ranks

    from torch.distributed.run import main as torchrun

    torchrun(
        [
            f"--node-rank={node}",
            f"--rdzv-endpoint={endpoint}",
            f"--log-dir={Path('elastic', f'node_{node}').absolute()}",
            *arguments,
        ]
    )


def _take_input() -> int:
    """Move the standard input to a descriptor that ranks do not inherit."""
    orders = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)
    return orders


def _obey(orders: int) -> None:
    """Follow the harness's orders in a thread of the keeper."""
    main_thread = threading.main_thread().ident or 0

    def follow() -> None:
        import psutil

        from harness.system.processes import ask_for_stacks

        while line := os.read(orders, len(STACKS)):
            if line == STACKS:
                ask_for_stacks(psutil.Process().children(recursive=True))
        while True:  # right before the main thread starts to wait, a signal does not wake it
            signal.pthread_kill(main_thread, signal.SIGTERM)
            time.sleep(POLL_SECONDS)

    threading.Thread(target=follow, daemon=True).start()


def _endpoint() -> str:
    """The address and port of the store, once the first node has chosen them."""
    while not (endpoint := Path(ENDPOINT).read_text()):
        time.sleep(POLL_SECONDS)
    return endpoint


def _address(name: str) -> str:
    """The address by which Slurm, and so other nodes, reach this node."""
    command = ["scontrol", "show", "node", name]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    match = re.search(r"\bNodeAddr=(\S+)", process.stdout)
    return match[1] if match else name


if __name__ == "__main__":
    main(sys.argv[1:])
