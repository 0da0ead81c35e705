"""The compose file, used: a night by it, and the site that it serves."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request

from tests.docker_nightly.engine import Unavailable, expect, install, last_line
from tests.docker_nightly.image import NAME, ROOT
from tests.docker_nightly.nightlies import Nights

PROJECT = "distributed-bugs-check"
VOLUME = f"{PROJECT}_cache"
"""What compose calls the volume ``cache`` of the project: the other nights use the same."""


OUTSIDE = "services: {nightly: {network_mode: host}}\n"
"""As the other nights are run: an engine of ours reaches the outside by no other network."""


class Compose:
    """Docker compose for one caller: the plugin where there is one, else the older program."""

    def __init__(self, nights: Nights) -> None:
        plugin = nights.engine("compose", "version", check=False)
        if plugin.returncode == 0:
            self.program = [nights.engine.client, "compose"]
        else:
            if shutil.which("docker-compose") is None:
                if os.getuid() != 0:
                    raise Unavailable("no docker compose here, and only root can install it")
                install("docker-compose", "docker-compose")
            self.program = ["docker-compose"]
        self.outside = nights.report.with_name("compose.yaml")
        self.outside.write_text(OUTSIDE)
        self.port = free_port()
        self.environment = {
            **os.environ,
            **nights.engine.environment,
            "IMAGE": NAME,
            "NIGHT_USER": nights.user,
            "REPORT": str(nights.report),
            "SITE_ADDRESS": f"127.0.0.1:{self.port}",
            "COMPOSE_PROJECT_NAME": PROJECT,
        }

    def __call__(self, *words: str) -> str:
        done = self.run(*words)
        expect(not done.returncode, f"compose {words[0]}: {last_line(done.stderr or done.stdout)}")
        return done.stdout

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        files = ["--file", str(ROOT / "docker/compose.yaml"), "--file", str(self.outside)]
        return subprocess.run(
            [*self.program, *files, *words],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=1200,
        )


def free_port() -> int:
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return int(asked.getsockname()[1])


def is_understood(compose: Compose) -> str:
    said = compose("config", "--services")
    expect(set(said.split()) == {"nightly", "site"}, f"its services are {said.split()}")
    return f"{' '.join(compose.program)}: nightly and site"


def runs_a_night(compose: Compose, *words: str) -> str:
    done = compose.run("run", "--rm", "nightly", *words)
    expect(done.returncode in (0, 1), f"exit code {done.returncode}: {last_line(done.stderr)}")
    return f"exit code {done.returncode}"


def serves_the_site(compose: Compose) -> str:
    compose("up", "--detach", "site")
    try:
        address = f"http://127.0.0.1:{compose.port}/"
        page = fetched(address)
        expect("<html" in page, f"{address} answers {page[:100]!r}")
        return f"{len(page)} characters of its first page"
    finally:
        compose("down")


def fetched(address: str) -> str:
    """What a server that is just starting answers."""
    deadline = time.monotonic() + 30
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    while True:
        try:
            with direct.open(address, timeout=5) as answer:
                return str(answer.read().decode())
        except (urllib.error.URLError, OSError) as error:
            expect(time.monotonic() < deadline, f"{address} does not answer: {error}")
            time.sleep(0.2)
