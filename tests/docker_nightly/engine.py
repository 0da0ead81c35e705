"""A Docker engine: the one that answers, else one that is brought up and ended again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


class Unavailable(Exception):
    """What is needed here cannot be had; one line says why."""


class Failed(Exception):
    """Something is not as it should be; one line says what."""


def expect(true: object, otherwise: str) -> None:
    if not true:
        raise Failed(otherwise)


WAYS = (
    ("--storage-driver=overlay2",),
    ("--storage-driver=overlay2", "--bridge=none"),
    ("--storage-driver=fuse-overlayfs", "--bridge=none"),
    ("--storage-driver=vfs", "--bridge=none"),
)
"""How an engine of ours keeps images, and whether it has a network of its own: the best first, as
not every disk and every kernel can do each."""


@dataclass(frozen=True)
class Engine:
    """A client and the engine that it asks."""

    client: str
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside the caller's own: the address of an engine of ours."""

    def __call__(
        self, *words: str | Path, seconds: float = 1200, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Ask it; stdout and stderr come as one text. CalledProcessError where it says no."""
        return subprocess.run(
            [self.client, *words],
            env={**os.environ, "DOCKER_BUILDKIT": "1", **self.environment},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=check,
        )

    def answers(self) -> bool:
        try:
            return self("info", seconds=20, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False


@contextmanager
def lent(folder: Path) -> Iterator[Engine]:
    """An engine; ours, if no other answers, keeps all that it has in ``folder``."""
    for client in clients():
        engine = Engine(client)
        if engine.answers():
            print(f"an engine answers {client}")
            yield engine
            return
    with own(folder) as engine:
        yield engine


def clients() -> list[str]:
    """The docker clients here that can build with BuildKit: a new one leaves that to buildx."""
    places = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin"]
    found = dict.fromkeys(filter(None, (shutil.which("docker", path=p) for p in places)))
    return [client for client in found if builds(client)]


def builds(client: str) -> bool:
    buildx = subprocess.run([client, "buildx", "version"], capture_output=True, check=False)
    said = subprocess.run([client, "--version"], capture_output=True, text=True, check=False)
    major = re.search(r"version (\d+)", said.stdout)
    return buildx.returncode == 0 or (major is not None and int(major.group(1)) < 23)


@contextmanager
def own(folder: Path) -> Iterator[Engine]:
    """An engine of ours; it ends with the block. It leaves the host's firewall and routes alone, so
    only ``--network host`` reaches the outside."""
    if os.getuid() != 0:
        raise Unavailable("no docker engine answers, and only root can bring one up")
    if shutil.which("dockerd") is None or not clients():
        install("docker.io", "dockerd")
    if not clients():
        raise Unavailable("no docker client here can build with BuildKit")
    folder.mkdir(parents=True, exist_ok=True)
    said = []
    for way in WAYS:
        with started(folder, way) as (engine, why):
            if engine is not None:
                print(f"a dockerd of our own, {' '.join(way)}")
                yield engine
                return
            said.append(why)
    raise Unavailable(f"dockerd does not start: {'; '.join(said)}")


@contextmanager
def started(folder: Path, way: Sequence[str]) -> Iterator[tuple[Engine | None, str]]:
    """A dockerd, or None and the last that it said; ended and waited for afterwards."""
    address, log = f"unix://{folder}/docker.sock", folder / "dockerd.log"
    with log.open("w") as said:
        daemon = subprocess.Popen(
            [
                "dockerd",
                "--host",
                address,
                "--data-root",
                folder / "data",
                "--exec-root",
                folder / "exec",
                "--pidfile",
                folder / "pid",
                "--iptables=false",
                "--ip-forward=false",
                *way,
            ],
            stdout=said,
            stderr=said,
        )
    try:
        engine = Engine(clients()[0], {"DOCKER_HOST": address})
        deadline = time.monotonic() + 60
        while daemon.poll() is None and time.monotonic() < deadline:
            if engine.answers():
                yield engine, ""
                return
            time.sleep(0.5)
        yield None, (log.read_text().splitlines() or ["it said nothing"])[-1]
    finally:
        daemon.terminate()
        daemon.wait(60)
        unmount(folder)


def unmount(folder: Path) -> None:
    """Unmount what an engine leaves mounted under its folder, which could not be removed else."""
    mounted = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for place in reversed(mounted):
        if place.startswith(f"{folder}/"):
            subprocess.run(["umount", place], check=False)


def install(package: str, program: str) -> None:
    """Install a Debian package that has a program, as root; Unavailable where that fails."""
    if shutil.which("apt-get") is None:
        raise Unavailable(f"no {program} here, and no apt-get to install it with")
    print(f"installing {package}")
    for words in (["update"], ["install", "--yes", "--no-install-recommends", package]):
        done = subprocess.run(
            ["apt-get", "--quiet", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        )
        if done.returncode:
            raise Unavailable(f"{package} cannot be installed: {last_line(done.stderr)}")
    if shutil.which(program) is None:
        raise Unavailable(f"{package} has no {program}")


def last_line(text: str) -> str:
    """What a command that failed said in the end."""
    return next(iter(reversed(text.strip().splitlines())), "it said nothing")


def base_image(engine: Engine, wanted: str, folder: Path) -> str:
    """The name of a base image: the wanted one, or Debian's Python where no registry has it."""
    there = ["image", "inspect", wanted]
    if engine(*there, check=False).returncode == 0:
        return wanted
    pulled = engine("pull", wanted, check=False)
    if pulled.returncode == 0:
        return wanted
    print(f"no {wanted}: {last_line(pulled.stdout)}")
    return debian(engine, folder)


def debian(engine: Engine, folder: Path, suite: str = "bookworm") -> str:
    """An image of Debian with its Python, made by debootstrap."""
    name = f"distributed-bugs-base:{suite}"
    if engine("image", "inspect", name, check=False).returncode == 0:
        return name
    if os.getuid() != 0:
        raise Unavailable("no registry answers, and only root can make a base image")
    if shutil.which("debootstrap") is None:
        install("debootstrap", "debootstrap")
    print(f"making {name} by debootstrap")
    root, packed = folder / "base", folder / "base.tar"
    try:
        packages = "--include=python3,python3-venv,ca-certificates"
        run(["debootstrap", "--variant=minbase", packages, suite, root])
        leave_out = [f"--exclude=./{place}" for place in ("var/cache/apt/*", "var/lib/apt/lists/*")]
        run(["tar", "--directory", root, *leave_out, "--create", "--file", packed, "."])
        engine("import", packed, name)
    finally:
        shutil.rmtree(root, ignore_errors=True)
        packed.unlink(missing_ok=True)
    return name


def run(words: Sequence[str | Path]) -> None:
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise Unavailable(f"{words[0]} failed: {last_line(done.stdout)}")
