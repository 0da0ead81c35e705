"""A package index of our own, over HTTP, with pages that a test makes up."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

FORM = "application/vnd.pypi.simple.v1+json"


class Handler(BaseHTTPRequestHandler):
    """Answers with the page of a package; a number is a status, a text goes out as it is.

    The pages of another index than ``/simple`` are named with it: ``mine/deepspeed``.
    """

    pages: ClassVar[dict[str, Any]] = {}
    asked: ClassVar[list[str]] = []
    slow: ClassVar[float] = 0.0
    """Seconds that an answer takes."""

    def do_GET(self) -> None:
        self.asked.append(self.path)
        time.sleep(self.slow)
        page = self.pages.get(self.path.strip("/").removeprefix("simple/"), 404)
        text = page if isinstance(page, str) else json.dumps(page)
        self.send_response(page if isinstance(page, int) else 200)
        self.send_header("Content-Type", FORM)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serving() -> Iterator[ThreadingHTTPServer]:
    """Serve ``Handler.pages``, which are none at first."""
    Handler.pages, Handler.asked = {}, []
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


def file(name: str, uploaded: str | None, yanked: bool | str = False) -> dict[str, Any]:
    told: dict[str, Any] = {"filename": name, "url": name, "hashes": {}, "yanked": yanked}
    return told | ({"upload-time": f"{uploaded}Z"} if uploaded else {})
