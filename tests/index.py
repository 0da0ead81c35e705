"""A package index over HTTP, with made-up pages."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

FORM = "application/vnd.pypi.simple.v1+json"


class Handler(BaseHTTPRequestHandler):
    """Responds with the page of a package; a number is a status, a text is sent as it is.

    The pages of another index than ``/simple`` begin with its name: ``mine/deepspeed``.
    """

    pages: ClassVar[dict[str, Any]] = {}
    requests: ClassVar[list[str]] = []
    slow: ClassVar[float] = 0.0
    """Seconds that a response takes."""
    dripping: ClassVar[float] = 0.0
    """Seconds between a space and the next one, which come before the page."""

    def do_GET(self) -> None:
        self.requests.append(self.path)
        time.sleep(self.slow)
        page = self.pages.get(self.path.strip("/").removeprefix("simple/"), 404)
        text = page if isinstance(page, str) else json.dumps(page)
        self.send_response(page if isinstance(page, int) else 200)
        self.send_header("Content-Type", FORM)
        self.end_headers()
        for _ in range(20 if self.dripping else 0):
            self.wfile.write(b" ")
            time.sleep(self.dripping)
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    """Serve ``Handler.pages``, which is empty at first."""
    Handler.pages, Handler.requests = {}, []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def address(server: ThreadingHTTPServer, user: str = "") -> str:
    return f"http://{user}127.0.0.1:{server.server_port}/simple"


def page(*files: dict[str, Any]) -> dict[str, Any]:
    return {"meta": {"api-version": "1.1"}, "name": "deepspeed", "files": list(files)}


def file(name: str, uploaded: str | None = None, yanked: bool | str = False) -> dict[str, Any]:
    content: dict[str, Any] = {"filename": name, "url": name, "hashes": {}, "yanked": yanked}
    return content | ({"upload-time": f"{uploaded}Z"} if uploaded else {})


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Handler]]:
    """The user's package index, which serves ``Handler.pages``."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for variable in ("UV_OFFLINE", "UV_INDEX_URL"):
        monkeypatch.delenv(variable, raising=False)
    with serving() as server:
        for variable in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
            monkeypatch.setenv(variable, address(server, "me:secret@"))
        yield Handler


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index that does not respond."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("UV_OFFLINE", raising=False)
    for variable in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(variable, "http://me:secret@127.0.0.1:9/simple")
