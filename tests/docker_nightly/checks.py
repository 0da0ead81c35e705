"""What is checked of the image and of its nights: a function each, which says what it saw."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

from tests.docker_nightly.engine import expect
from tests.docker_nightly.image import NAME
from tests.docker_nightly.nightlies import Night, Nights

PROMPT = 20
"""Within how many seconds a night has ended after SIGTERM; docker would kill it after 60."""


def nobody_is_root(nights: Nights) -> str:
    own = nights.shell("id -u", user="night")
    given = nights.shell('id -u; touch "$HOME/written" "$HARNESS_CACHE" && echo writable')
    uid = nights.user.partition(":")[0]
    expect(own != "0", "the image's own user is root")
    expect(given.split() == [uid, "writable"], f"as user {uid}: {given}")
    return f"its own user is {own}; user {uid} may write to its home and the cache"


def nothing_is_left_over(nights: Nights) -> str:
    """No caches, and no wheels: each would be in the image for good."""
    left = nights.shell(
        "find / -xdev \\( -path '*/.cache/pip/*' -o -path '*/.cache/uv/*' -o -name '*.whl' "
        "-o -path '/var/lib/apt/lists/*' -o -path '/var/cache/apt/*' \\) -type f "
        "-not -path '*/ensurepip/*' -not -path '/usr/share/python-wheels/*' 2>/dev/null || true"
    )
    expect(not left, f"the image keeps {left.splitlines()[:3]}")
    return "no caches, no wheels"


def the_commit_is_known(nights: Nights) -> str:
    said = nights.shell("cd /opt/distributed-bugs && git rev-parse --short HEAD || echo unknown")
    return f"commit {said}"


def a_night(nights: Nights, *words: str) -> str:
    """Report, site, history and runs are there, all of it the caller's; ours reproduce.

    What upstream released meanwhile may be for the worse: that is exit code 1, and no fault here.
    """
    return left_what_is_wanted(nights, nights.run(*words), codes=(0, 1))


def left_what_is_wanted(nights: Nights, night: Night, codes: Sequence[int]) -> str:
    expect(night.code in codes, f"exit code {night.code}: {tail(night)}")
    report = nights.report
    wanted = ("junit.xml", "summary.md", "night.json", "history.sqlite", "site/index.html", "runs")
    missing = [name for name in wanted if not (report / name).exists()]
    expect(not missing, f"no {', '.join(missing)} in the mounted folder")
    uid = report.stat().st_uid
    strangers = [path for path in everything(report) if path.lstat().st_uid != uid]
    expect(not strangers, f"{strangers[:3]} are not the caller's")
    (told,) = json.loads((report / "night.json").read_text())["nights"]
    expect(told["exit_code"] == night.code, f"{night.code}, and in night.json {told['exit_code']}")
    ours = ", ".join(f"{own['scenario']} {own['verdict']}" for own in told["ours"])
    expect(all(own["verdict"] == "reproduced" for own in told["ours"]) and told["ours"], ours)
    count = sum(1 for _ in everything(report))
    return f"exit code {night.code} in {night.seconds:.0f} s; {count} files of user {uid}; {ours}"


def everything(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def tail(night: Night) -> str:
    """The last that a night said, as one line."""
    return " | ".join(night.said.strip().splitlines()[-4:])


def a_night_without_network(nights: Nights, *words: str) -> str:
    """A night that has all it needs changes nothing of it, and reproduces ours without a network.

    What is new cannot be asked then, which may make it inconclusive.
    """
    before = nights.inventory()
    expect(before, "the volume is empty")
    said = left_what_is_wanted(nights, nights.run(*words, network="none"), codes=(0, 1, 3))
    changed = before ^ nights.inventory()
    expect(not changed, f"the volume is another: {sorted(changed)[:3]}")
    return f"{said}; {len(before)} files of the volume untouched"


def history_is_whole(nights: Nights, ended: int) -> str:
    with closing(sqlite3.connect(nights.report / "history.sqlite")) as history:
        whole = history.execute("pragma integrity_check").fetchone()[0]
        found = history.execute(
            "select count(ended), count(*) from night where kind = 'night'"
        ).fetchone()
    expect(whole == "ok", f"the history is broken: {whole}")
    expect(found[0] == ended, f"{found[0]} of {found[1]} nights have ended, not {ended}")
    return f"{found[0]} of {found[1]} nights have ended"


def ends_at_sigterm(nights: Nights, *scenarios: str) -> str:
    """Stopped in the middle of a run: in seconds, with the exit code of an interrupted night."""
    before = set((nights.report / "runs").iterdir())
    name = nights.begin(*scenarios)
    try:
        deadline = time.monotonic() + 300
        while not set((nights.report / "runs").iterdir()) - before:
            running = nights.engine("inspect", "--format", "{{.State.Running}}", name).stdout
            said = nights.engine("logs", name, check=False).stdout[-300:]
            expect(running.strip() == "true", f"it ended before it was stopped: {said}")
            expect(time.monotonic() < deadline, "no run was begun in 300 s")
            time.sleep(0.2)
        asked = time.monotonic()
        nights.engine("stop", "--time", "60", name)
        seconds = time.monotonic() - asked
        code = nights.engine("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip()
        expect(code == "130", f"exit code {code}")
        expect(seconds < PROMPT, f"it took {seconds:.0f} s")
        return f"ended in {seconds:.1f} s, exit code 130"
    finally:
        nights.engine("rm", "--force", name, check=False)


def mistakes_are_one_line(nights: Nights) -> str:
    night = nights.run("scenario=bf16_klip", network="none")
    lines = night.said.strip().splitlines()
    expect(night.code == 2 and len(lines) == 1, f"exit code {night.code}: {night.said[-300:]}")
    return f"exit code 2: {lines[0][:100]}"


def a_strangers_folder_is_told(nights: Nights) -> str:
    done = nights.engine(
        "run",
        "--rm",
        "--network",
        "none",
        "--user",
        "54321:54321",
        "--volume",
        f"{nights.report}:/report",
        NAME,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    expect(done.returncode == 3 and len(lines) == 1, f"exit code {done.returncode}: {done.stdout}")
    return f"exit code 3: {lines[0][:100]}"


def built_from_layers(said: str) -> str:
    """A build after a change of our code took torch and what else is required from its layers."""
    steps = dict(re.findall(r"^#(\d+) (\[ *\d+/\d+\] .*)$", said, flags=re.MULTILINE))
    cached = set(re.findall(r"^#(\d+) CACHED$", said, flags=re.MULTILINE))
    fetching = {number for number, step in steps.items() if "/tmp/pip" in step}
    expect(len(fetching) == 2, f"{len(fetching)} steps fetch packages, where there were two")
    expect(fetching <= cached, "torch, or what else is required, was fetched again")
    return f"{len(cached)} of {len(steps)} steps from their layers"
