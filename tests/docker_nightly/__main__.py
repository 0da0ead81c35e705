"""Runs the checks in their order: the image, nightlies, compose."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.docker_nightly import __doc__ as about
from tests.docker_nightly import checks, compose, engine, image
from tests.docker_nightly.engine import Engine, Failed, Unavailable, last_line
from tests.docker_nightly.nightlies import Nightlies, report_folder

SCENARIOS = ("bf16_clip", "sampler_shards")
"""The fastest ones, of two upstreams: one with a defect, one with a pair of releases."""


def main(arguments: Sequence[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    name = "python -m tests.docker_nightly"
    parser = argparse.ArgumentParser(prog=name, description=about, formatter_class=raw)
    parser.add_argument("scenario", nargs="*", default=SCENARIOS)
    base = "the image to build upon, or the folder of a Python to make one with, as root"
    parser.add_argument("--base", default="python:3.11-slim", help=base)
    no_engine = "exit code 0 where something that it needs is missing"
    parser.add_argument("--where-possible", action="store_true", help=no_engine)
    parser.add_argument(
        "--one-night", action="store_true", help="only the image, and one nightly of one scenario"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # and so end what was started
    started = time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="docker-nightly-") as folder:
            Path(folder).chmod(0o755)  # the user of the nightlies must reach the report
            names = options.scenario[:1] if options.one_night else options.scenario
            run = run_one if options.one_night else run_all
            failed = run(engine.find(), Path(folder), options.base, ",".join(names))
    except Unavailable as error:
        print(f"not run: {error}")
        return 0 if options.where_possible else 4
    print(f"{failed} failed, in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


class Tally:
    """Runs checks, prints a line for each, and counts those that fail."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, label: str, check: Callable[..., str], *arguments: Any) -> None:
        try:
            verdict, line = "ok", check(*arguments)
        except Unavailable:
            raise
        except Exception as error:  # it failed, or took too long, or a file is missing
            stdout = error.stdout if isinstance(error, subprocess.CalledProcessError) else None
            name = "" if isinstance(error, Failed) else f"{type(error).__name__}: "
            verdict, line = "FAILED", last_line(stdout) if stdout else f"{name}{error}"
        self.failed += verdict != "ok"
        print(f"{verdict:6}  {label}: {line}", flush=True)


def run_all(docker: Engine, folder: Path, base: str, scenarios: str) -> int:
    """Run all checks; returns how many failed. The image ``distributed-bugs:check`` stays."""
    tally, words = Tally(), f"scenario={scenarios}"
    tally("built", build, docker, folder, base)
    if tally.failed:
        return tally.failed
    nightlies = Nightlies(docker, report_folder(folder), compose.VOLUME)
    try:
        tally("not root inside", checks.nobody_is_root, nightlies)
        tally("nothing left over", checks.nothing_is_left_over, nightlies)
        tally("guard inside", checks.guard_inside, nightlies)
        tally("guard outside", checks.guard_outside, nightlies)
        tally("a first nightly", checks.a_nightly, nightlies, words)
        tally("a second one, offline", checks.a_nightly_without_network, nightlies, words)
        tally("SIGTERM", checks.ends_at_sigterm, nightlies, words)
        tally("the history after it", checks.history_is_complete, nightlies, 2)
        tally("the next nightly", checks.a_nightly, nightlies, words)
        tally("the complete history", checks.history_is_complete, nightlies, 3)
        run_compose(nightlies, tally, words)
    finally:
        docker("volume", "rm", "--force", nightlies.volume, check=False)
    return tally.failed


def run_one(docker: Engine, folder: Path, base: str, scenario: str) -> int:
    """Build the image and run one nightly in it; returns how many checks failed."""
    tally = Tally()
    tally("built", build, docker, folder, base)
    if not tally.failed:
        nightlies = Nightlies(docker, report_folder(folder), compose.VOLUME)
        try:
            tally("a nightly", checks.a_nightly, nightlies, f"scenario={scenario}")
        finally:
            docker("volume", "rm", "--force", nightlies.volume, check=False)
    return tally.failed


def build(docker: Engine, folder: Path, base: str) -> str:
    context = folder / "context"
    context.mkdir()
    base = image.base_at_hand(docker, base, folder)
    image.build(docker, image.context(context, image.wheels(docker, base)), base)
    size = docker("image", "inspect", "--format", "{{.Size}}", image.NAME).stdout
    return f"{int(size) / 1e9:.2f} GB upon {base}"


def run_compose(nightlies: Nightlies, tally: Tally, words: str) -> None:
    try:
        by = compose.Compose(nightlies)
    except Unavailable as error:
        print(f"not run: {error}")
        return
    tally("a nightly by compose", compose.runs_a_nightly, by, words)
    tally("the site, served", compose.serves_the_site, by)


if __name__ == "__main__":
    sys.exit(main())
