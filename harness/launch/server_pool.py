"""The servers of a command: launches are forked from them, and later runs use them again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType

from harness.launch.servers import OverlayServer, TorchServer, Wanted

SERVERS_A_RUN = 4
"""The most overlays that the variants of most scenarios have. A server takes 0.3 to 0.7 GB."""


@dataclass
class Pool:
    """The most recently used servers of a command, at most ``most`` of them.

    Threads may share a pool. Leaving its context ends all servers.
    """

    most: int = 2 * SERVERS_A_RUN
    _servers: OrderedDict[str, OverlayServer] = field(default_factory=OrderedDict)
    _roots: dict[str, TorchServer] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def server(self, wanted: Wanted) -> OverlayServer:
        """The server that has imported what is wanted; starts one if there is none yet."""
        with self._lock:
            found = self._servers.pop(wanted.key, None)
            if found is None or not found.alive:
                found = OverlayServer(self._root(wanted), wanted)
            self._servers[wanted.key] = found
            spare: list[OverlayServer | TorchServer] = list(self._spare_servers(found))
            spare += self._spare_roots()
        for each in spare:
            each.close()
        return found

    def _root(self, wanted: Wanted) -> TorchServer:
        found = self._roots.pop(wanted.base, None)
        if found is None or not found.alive:
            found = TorchServer(wanted)
        self._roots[wanted.base] = found
        return found

    def _spare_servers(self, used: OverlayServer) -> Iterator[OverlayServer]:
        idle = [s for s in self._servers.values() if s is not used and not s.busy]
        for server in idle[: max(0, len(self._servers) - self.most)]:
            yield self._servers.pop(server.wanted.key)

    def _spare_roots(self) -> Iterator[TorchServer]:
        used = [server.root for server in self._servers.values()]
        for base in [base for base, root in self._roots.items() if root not in used]:
            yield self._roots.pop(base)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        with self._lock:
            ending: list[OverlayServer | TorchServer] = [
                *self._servers.values(),
                *self._roots.values(),
            ]
            self._servers.clear()
            self._roots.clear()
        for each in ending:
            each.close()
