"""Builds the image from the working tree, with the caller's proxies and indexes.

The image to build upon is pulled, or made from Debian's packages where none can be pulled.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.docker_nightly.engine import Engine, Unavailable, last_line

ROOT = Path(__file__).parent.parent.parent
DOCKERFILE = ROOT / "docker" / "Dockerfile"
NAME = "distributed-bugs:check"

PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
INDEXES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
AT_RUN = (*PROXIES, *INDEXES, "UV_DEFAULT_INDEX", "UV_INDEX")
"""The caller's environment variables that containers get."""


def certificate() -> list[str | Path]:
    """Options of ``run`` that mount the caller's certificate, if there is one."""
    file = os.environ.get("SSL_CERT_FILE")
    path = "/etc/ssl/night.crt"
    return ["-v", f"{file}:{path}:ro", "-e", f"SSL_CERT_FILE={path}"] if file else []


def settings() -> list[str]:
    """Options of ``run`` that pass the caller's proxies and indexes."""
    return [word for name in AT_RUN if name in os.environ for word in ("-e", name)]


def context(folder: Path, wheels: Sequence[Path]) -> Path:
    """Copy the files that git knows, and these wheels."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    if (ROOT / ".git").is_dir():
        shutil.copytree(ROOT / ".git", folder / ".git", symlinks=True)
    for wheel in wheels:
        shutil.copy2(wheel, folder / "docker" / "wheels")
    return folder


def wheels(docker: Engine, base: str) -> list[Path]:
    """The wheels in the folders of PIP_FIND_LINKS of the torch that the image gets.

    Raises Unavailable if it would get a torch for GPUs, which is gigabytes.
    """
    (version,) = re.findall(r"^ARG TORCH=torch==(\S+)", DOCKERFILE.read_text(), flags=re.MULTILINE)
    python = python_of(docker, base)
    folders = os.environ.get("PIP_FIND_LINKS", "").split()
    paths = [Path(folder.removeprefix("file://")) for folder in folders]
    name = f"torch-{version}[+-]*{python}-{python}-*.whl"
    builds = [wheel for path in paths for wheel in sorted(path.glob(name))]
    if not builds and "TORCH_INDEX" not in os.environ:
        raise Unavailable(
            f"no build of torch {version} for the CPU and {python}: name the index that has it in "
            "TORCH_INDEX, or a folder with its wheel in PIP_FIND_LINKS"
        )
    return builds


def python_of(docker: Engine, base: str) -> str:
    """The Python of a base image as wheels name it, such as cp311; any, cp3*, if it has none."""
    script = "import sys; print('cp%d%d' % sys.version_info[:2])"
    alone = ("run", "--rm", "--network", "none", "--entrypoint", "python3")
    process = docker(*alone, base, "-c", script, check=False)
    return "cp3*" if process.returncode else last_line(process.stdout)


def build(engine: Engine, context: Path, base: str) -> str:
    """Build the image; returns the output. Raises CalledProcessError if the build fails."""
    passed = [name for name in (*INDEXES, *PROXIES, "TORCH_INDEX") if name in os.environ]
    arguments = [word for name in passed for word in ("--build-arg", name)]
    secret = os.environ.get("SSL_CERT_FILE")
    secrets = ["--secret", f"id=ca,src={secret}"] if secret else []
    options: list[str | Path] = ["--progress", "plain", "--network", "host", *secrets, *arguments]
    options += ["--build-arg", f"BASE={base}", "--file", context / "docker" / "Dockerfile"]
    return engine("build", *options, "--tag", NAME, context).stdout


BASE_NAME = "distributed-bugs:base"
RELEASE = "bookworm"
"""Debian 12, whose Python is 3.11."""
PACKAGES = ("python3", "python3-venv", "git", "ca-certificates")
LIBRARIES = ("libffi8", "libreadline8", "libsqlite3-0", "libssl3", "libuuid1")
"""What a Python that is not Debian's needs."""


def base_at_hand(docker: Engine, base: str, folder: Path) -> str:
    """The name of a local image: ``base``, or one that debootstrap makes in ``folder``.

    A ``base`` that is a path names the folder of the Python that the made image gets.
    Raises Unavailable if the image can neither be pulled nor made.
    """
    python, why = Path(base) if base.startswith("/") else None, ""
    if python is None:
        if not docker("image", "inspect", base, check=False).returncode:
            return base
        pulled = docker("pull", "--quiet", base, check=False)
        if not pulled.returncode:
            return base
        why = f"{base} cannot be pulled ({last_line(pulled.stdout)}); "
    if os.getuid() != 0 or shutil.which("debootstrap") is None:
        raise Unavailable(f"{why}root makes a base with debootstrap, where that is installed")
    return made_base(docker, folder / "base", python)


def made_base(docker: Engine, folder: Path, python: Path | None) -> str:
    """Make an image of Debian with its Python, or this one, and import it; returns its name."""
    included = f"--include={','.join(LIBRARIES if python else PACKAGES)}"
    subprocess.run(
        ["debootstrap", "--variant=minbase", included, RELEASE, folder],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if python:  # in /usr/local and without git, as in python:3.11-slim
        ignored = shutil.ignore_patterns("site-packages", "test", "__pycache__", "*.a")
        shutil.copytree(python, folder / "usr/local", True, ignored, dirs_exist_ok=True)
        subprocess.run(
            ["chroot", folder, "sh", "-c", "ldconfig && python3 -m ensurepip"],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    with subprocess.Popen(
        ["tar", "--one-file-system", "-C", folder, "-c", "."], stdout=subprocess.PIPE
    ) as packed:
        subprocess.run(
            [docker.client, "import", "-", BASE_NAME],
            stdin=packed.stdout,
            stdout=subprocess.DEVNULL,
            check=True,
            timeout=600,
        )
    return BASE_NAME
