"""The order of what is tried: an engine, an image, nights, faults, compose."""

from __future__ import annotations

import argparse
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.docker_nightly import __doc__ as about
from tests.docker_nightly import checks, compose, image
from tests.docker_nightly.engine import Engine, Failed, Unavailable, base_image, last_line, lent
from tests.docker_nightly.nightlies import Nights, mounted

SCENARIOS = ("bf16_clip", "sampler_shards")
"""The quickest, of two upstreams: one with a defect put in, one a pair of releases."""

ROOM = 6e9
"""In bytes: the base image, the build's copy of the context, the image and one more of it."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.docker_nightly",
        description=about,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", nargs="*", default=SCENARIOS)
    parser.add_argument("--base", default="python:3.11-slim", help="the image to build upon")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder, to keep all in")
    parser.add_argument(
        "--where-possible", action="store_true", help="exit code 0 where there is no engine"
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # what we have started is ended then
    begun = time.monotonic()
    try:
        with place(options.keep) as folder, lent(folder / "engine") as engine:
            failed = try_all(engine, folder, options.base, ",".join(options.scenario))
    except Unavailable as error:
        print(f"not tried: {error}")
        return 0 if options.where_possible else 4
    print(f"{failed or 'nothing'} failed, in {time.monotonic() - begun:.0f} s")
    return 1 if failed else 0


@contextmanager
def place(kept: Path | None) -> Iterator[Path]:
    """Where everything lies meanwhile; removed afterwards, if it is not to be kept."""
    if kept is None:
        folder = Path(tempfile.mkdtemp(prefix="docker-night-"))
    else:
        folder = kept.absolute()
        folder.mkdir(parents=True)
    folder.chmod(0o755)  # who runs the nights goes through it to the report
    try:
        free = shutil.disk_usage(folder).free
        if free < ROOM:
            raise Unavailable(f"{free / 1e9:.1f} GB free in {folder}, {ROOM / 1e9:.0f} needed")
        yield folder
    finally:
        if kept is None:
            shutil.rmtree(folder)


class Tally:
    """How many checks have failed; each is a line."""

    def __init__(self) -> None:
        self.failed = 0

    def __call__(self, what: str, check: Callable[[], str]) -> None:
        try:
            verdict, said = "ok", check()
        except Failed as error:
            verdict, said = "FAILED", str(error)
        except subprocess.CalledProcessError as error:
            verdict, said = "FAILED", last_line(error.stdout)
        except subprocess.TimeoutExpired as error:
            verdict, said = "FAILED", f"it had not ended after {error.timeout:.0f} s"
        except (
            OSError,
            LookupError,
            ValueError,
            sqlite3.Error,
        ) as error:  # what was looked at is not there
            verdict, said = "FAILED", f"{type(error).__name__}: {error}"
        self.failed += verdict != "ok"
        print(f"{verdict:6}  {what}: {said}", flush=True)


def try_all(engine: Engine, folder: Path, base: str, scenarios: str) -> int:
    """Build, run nights and check them; how many checks failed. What was built is named
    ``distributed-bugs:check`` and stays with an engine that was there before."""
    tally = Tally()
    with built(engine, folder, base, tally):
        if tally.failed:
            return tally.failed
        nights = Nights(engine, mounted(folder), compose.VOLUME)
        try:
            try_the_image(nights, tally)
            try_nights(nights, tally, f"scenario={scenarios}")
            try_compose(nights, tally, f"scenario={scenarios}")
        finally:
            engine("volume", "rm", "--force", nights.volume, check=False)
    return tally.failed


@contextmanager
def built(engine: Engine, folder: Path, base: str, tally: Tally) -> Iterator[None]:
    """The image; built again with a change of our code, and once more as it is."""
    found = base_image(engine, base, folder)
    context = folder / "context"
    context.mkdir()
    try:
        image.context(context)
        begun = time.monotonic()

        def first() -> str:
            image.build(engine, context, found)
            size = engine("image", "inspect", "--format", "{{.Size}}", image.NAME).stdout
            return f"{int(size) / 1e9:.2f} GB upon {found}, in {time.monotonic() - begun:.0f} s"

        def again() -> str:
            (context / "harness" / "changed.py").write_text('"""A change."""\n')
            return checks.built_from_layers(image.build(engine, context, found))

        tally("built", first)
        if not tally.failed:
            tally("a change of our code fetches nothing", again)
            (context / "harness" / "changed.py").unlink()
            image.build(engine, context, found)
        yield
    finally:
        shutil.rmtree(context)


def try_the_image(nights: Nights, tally: Tally) -> None:
    tally("not root inside", lambda: checks.nobody_is_root(nights))
    tally("nothing left over", lambda: checks.nothing_is_left_over(nights))
    tally("says what it is", lambda: checks.the_commit_is_known(nights))
    tally("a mistake", lambda: checks.mistakes_are_one_line(nights))
    tally("another's folder", lambda: checks.a_strangers_folder_is_told(nights))


def try_nights(nights: Nights, tally: Tally, words: str) -> None:
    tally("a first night", lambda: checks.a_night(nights, words))
    tally("a second fetches nothing", lambda: checks.a_night_without_network(nights, words))
    tally("the history", lambda: checks.history_is_whole(nights, ended=2))
    tally("SIGTERM", lambda: checks.ends_at_sigterm(nights, words))
    tally("the history after it", lambda: checks.history_is_whole(nights, ended=2))
    tally("the next night goes on", lambda: checks.a_night(nights, words))
    tally("and the history, too", lambda: checks.history_is_whole(nights, ended=3))


def try_compose(nights: Nights, tally: Tally, words: str) -> None:
    try:
        by = compose.Compose(nights)
    except Unavailable as error:
        print(f"not tried: {error}")
        return
    tally("compose", lambda: compose.is_understood(by))
    tally("a night by compose", lambda: compose.runs_a_night(by, words))
    tally("the site, served", lambda: compose.serves_the_site(by))


if __name__ == "__main__":
    sys.exit(main())
