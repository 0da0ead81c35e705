"""The compose file: a nightly run by it, and the site that it serves."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request

from harness.system.ports import number, reserve_port
from tests.docker_nightly.engine import Unavailable, expect, last_line
from tests.docker_nightly.image import NAME, ROOT
from tests.docker_nightly.nightlies import Nightlies

PROJECT = "distributed-bugs-check"
VOLUME = f"{PROJECT}_cache"
"""Compose's name for the volume ``cache``: the other nightlies use the same one."""


class Compose:
    """Docker compose for one caller."""

    def __init__(self, nightlies: Nightlies) -> None:
        if nightlies.engine("compose", "version", check=False).returncode:
            raise Unavailable("no docker compose")
        self.client, self.keeper = nightlies.engine.client, reserve_port()
        self.port = number(self.keeper)
        variables = {"IMAGE": NAME, "NIGHT_USER": nightlies.user, "REPORT": str(nightlies.report)}
        variables |= {"SITE_ADDRESS": f"127.0.0.1:{self.port}", "COMPOSE_PROJECT_NAME": PROJECT}
        self.environment = {**os.environ, **variables}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [self.client, "compose", "--file", str(ROOT / "docker/compose.yaml"), *words]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=1200
        )


def runs_a_nightly(compose: Compose, *words: str) -> str:
    process = compose.run("run", "--rm", "nightly", *words)
    expect(
        process.returncode in (0, 1), f"exit code {process.returncode}: {last_line(process.stderr)}"
    )
    return f"exit code {process.returncode}"


def serves_the_site(compose: Compose) -> str:
    up = compose.run("up", "--detach", "site")
    expect(not up.returncode, f"compose up: {last_line(up.stderr)}")
    try:
        page = download(f"http://127.0.0.1:{compose.port}/")
        expect("<html" in page, f"the site's first page is {page[:100]!r}")
        return f"{len(page)} characters in its first page"
    finally:
        compose.run("down")


def download(address: str) -> str:
    """A page of a server that may still be starting."""
    deadline = time.monotonic() + 30
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(address, timeout=5) as response:
                return str(response.read().decode())
        except (urllib.error.URLError, OSError) as error:
            expect(time.monotonic() < deadline, f"{address} does not respond: {error}")
            time.sleep(0.2)
