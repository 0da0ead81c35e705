"""Tests what needs no torch, on every supported Python of this machine.

    python -m tests.pythons

For each Python, it installs the wheel into a new environment, runs COMMANDS there, and runs TESTS
in the checkout. Patch releases differ: Debian 12 has 3.11.2, which lacks features of 3.11.4.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.releases import uv
from harness.releases.locks import PYTHONS
from harness.system.files import ROOT

TESTS = (
    "tests/system/test_archives.py",
    "tests/releases/test_index.py",
    "tests/check/test_conda_environment.py",
    "tests/check/test_project_files.py",
    "tests/check/test_pyproject.py",
    "tests/check/test_resolver.py",
    "tests/check/test_settings.py",
    "tests/check/test_stack_files.py",
)
"""Tests that import no torch, and read files of users: Pythons differ in that."""

COMMANDS: tuple[tuple[int, str, tuple[str, ...]], ...] = (
    (0, "distributed-bugs 0", ("--version",)),
    (0, "bf16_clip", ("list",)),
    (0, "A GPU divides", ("show", "device_math")),
    (1, "trainer_gas_twice", ("check", "-r", "-")),
    (0, "", ("advisories", "--out", "osv")),
)
"""The exit code of each command, and what it prints."""


def main() -> int:
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        words = ["build", "--wheel", "--quiet", "--out-dir", folder, str(ROOT)]
        uv.run(words, {"distributed-bugs": "this checkout"})
        (wheel,) = Path(folder).glob("*.whl")
        for version, python in interpreters().items():
            complaint = _tried(python, wheel, Path(folder) / version)
            failed += bool(complaint)
            print(
                f"{'FAILED' if complaint else 'ok':6}  {version} ({python}): {complaint}",
                flush=True,
            )
    return 1 if failed else 0


ASK = "import sys; print(sys.version.split()[0], sys.executable)"


def interpreters(names: Sequence[str] = PYTHONS) -> dict[str, Path]:
    """The first interpreter of each version on the PATH, in /usr/bin, or next to ours (as pyenv
    installs them), by version."""
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin"]
    folders += [str(path / "bin") for path in sorted(Path(sys.base_prefix).parent.iterdir())]
    by_version: dict[str, Path] = {}
    for name in names:
        for folder in folders:
            if python := shutil.which(f"python{name}", path=folder):
                command = [python, "-Ic", ASK]
                process = subprocess.run(command, capture_output=True, text=True, check=False)
                version, _, itself = process.stdout.strip().partition(" ")
                if version and Path(itself) != Path(sys.executable):  # not our own environment
                    by_version.setdefault(version, Path(itself))
    return by_version


def _tried(python: Path, wheel: Path, folder: Path) -> str:
    """What went wrong with a Python; empty if nothing did."""
    uv_ = uv.binary()
    environment = folder / "venv"
    outside = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    needed = (str(wheel), "pytest>=8", "hydra-core<1.4")  # tests/conftest.py imports Hydra
    for words in (
        ("venv", "--quiet", "--python", str(python), str(environment)),
        ("pip", "install", "--quiet", "--python", str(environment / "bin" / "python"), *needed),
    ):
        process = subprocess.run([uv_, *words], env=outside, capture_output=True, text=True)
        if process.returncode:
            return " ".join(process.stderr.split())[-300:]
    return " ".join(filter(None, [*_commands(environment, folder), _tests(environment)]))


def _commands(environment: Path, folder: Path) -> Iterator[str]:
    for code, text, words in COMMANDS:
        process = subprocess.run(
            [environment / "bin" / "distributed-bugs", *words],
            cwd=folder,
            input="transformers==5.2.0\naccelerate==1.13.0\n",
            capture_output=True,
            text=True,
        )
        if process.returncode != code or text not in process.stdout:
            yield f"{words[0]} ends with {process.returncode}: {process.stderr.strip()[-300:]}"


def _tests(environment: Path) -> str:
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    process = subprocess.run(
        [environment / "bin" / "python", *words], cwd=ROOT, capture_output=True, text=True
    )
    lines = (process.stdout.strip() or process.stderr.strip()).splitlines()
    if process.returncode:
        return " | ".join(
            [line for line in lines if line.startswith(("FAILED", "ERROR", "E "))][:5] or lines[-3:]
        )
    return ""


if __name__ == "__main__":
    sys.exit(main())
