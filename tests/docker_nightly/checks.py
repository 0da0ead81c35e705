"""The checks of the image and of its nightlies. Each returns what it found in one line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from harness.publish.history import reading
from tests.docker_nightly.engine import expect
from tests.docker_nightly.image import NAME, ROOT
from tests.docker_nightly.nightlies import LIMIT, Ended, Nightlies

TORCHRUN = ("torchrun", "--nproc-per-node", "2")
ARGUMENTS = ("--batch-size", "4", "--accum", "3", "--bug")
BUG = "divided by k twice"


def nobody_is_root(nightlies: Nightlies) -> str:
    default_uid = nightlies.shell("id -u", user="night")
    output = nightlies.shell('id -u; touch "$HOME/written" "$HARNESS_CACHE" && echo writable')
    uid = nightlies.user.partition(":")[0]
    expect(default_uid != "0", "the image's own user is root")
    expect(output.split() == [uid, "writable"], f"as user {uid}: {output}")
    return f"its own user is {default_uid}; user {uid} may write to its home and the cache"


def nothing_is_left_over(nightlies: Nightlies) -> str:
    """The image contains no caches and no wheels."""
    leftovers = nightlies.shell(
        "find / -xdev \\( -path '*/.cache/pip/*' -o -path '*/.cache/uv/*' -o -name '*.whl' "
        "-o -path '/var/lib/apt/lists/*' -o -path '/var/cache/apt/*' \\) -type f "
        "-not -path '*/ensurepip/*' -not -path '/usr/share/python-wheels/*' 2>/dev/null || true"
    )
    expect(not leftovers, f"the image keeps {leftovers.splitlines()[:3]}")
    return "no caches, no wheels"


def guard_inside(nightlies: Nightlies) -> str:
    """guard is in the container, with the training."""

    def run(bug: str) -> tuple[int, str]:
        guard = ("--fail", *TORCHRUN, "loops/ddp.py", *ARGUMENTS, bug)
        options = (*nightlies.options(), "--workdir", "/opt/distributed-bugs")
        command = ["run", "--rm", *options, "--entrypoint", "distributed-bugs", NAME, "guard"]
        process = nightlies.engine(*command, *guard, check=False, seconds=LIMIT)
        return process.returncode, process.stdout

    return tells_a_fault(run)


def guard_outside(nightlies: Nightlies) -> str:
    """guard starts the container, which has torch and the training, and not this project."""
    folder = nightlies.report.parent / "guard"
    options = ("--rm", "--init", "--network", "host", "--user", f"{os.getuid()}:{os.getgid()}")
    mounts = ("--volume", f"{folder}:{folder}", "--volume", f"{ROOT / 'loops'}:/loops:ro")
    variables = ("--env", "PYTHONPATH", "--env", "PYTHON_DISTRIBUTED_BUGS_GUARD")
    hidden = ("--tmpfs", "/opt/distributed-bugs", "--workdir", "/loops", "--entrypoint", "")

    def run(bug: str) -> tuple[int, str]:
        guard = [sys.executable, "-m", "harness", "guard", "--fail", "--out", f"{folder}/report"]
        container = [nightlies.engine.client, "run", *options, *mounts, *variables, *hidden, NAME]
        process = subprocess.run(
            [*guard, *container, *TORCHRUN, "ddp.py", *ARGUMENTS, bug],
            cwd=ROOT,
            env={**os.environ, "HARNESS_CACHE": str(folder)},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            check=False,
        )
        return process.returncode, process.stdout

    return tells_a_fault(run)


def tells_a_fault(run: Callable[[str], tuple[int, str]]) -> str:
    """A right training of two ranks has no alarm under guard, and a wrong one has one."""
    code, output = run("")
    expect(code == 0 and "checked; " in output and "; no alarm" in output, output[-500:])
    code, output = run(BUG)
    alarms = [line for line in output.splitlines() if line.startswith("guard: ALARM: ")]
    expect(code == 1 and len(alarms) == 1, f"exit code {code}: {output[-500:]}")
    return alarms[0]


def a_nightly(nightlies: Nightlies, *words: str) -> str:
    """Report, site, history and runs exist and belong to the caller; our scenarios reproduce.

    A new upstream release may be affected: then the exit code is 1, which is no failure here.
    """
    return left_all_files(nightlies, nightlies.run(*words), codes=(0, 1))


def left_all_files(nightlies: Nightlies, ended: Ended, codes: Sequence[int]) -> str:
    expect(ended.code in codes, f"exit code {ended.code}: {tail(ended)}")
    report = nightlies.report
    names = ("summary.md", "night.json", "history.jsonl", "site/index.html", "runs")
    missing = [name for name in names if not (report / name).exists()]
    expect(not missing, f"no {', '.join(missing)} in the mounted folder")
    uid = report.stat().st_uid
    foreign = [path for path in everything(report) if path.lstat().st_uid != uid]
    expect(not foreign, f"{foreign[:3]} do not belong to the caller")
    content = json.loads((report / "night.json").read_text())
    expect(content["exit_code"] == ended.code, f"{ended.code}, but not in night.json")
    ours = ", ".join(f"{row['scenario']} {row['verdict']}" for row in content["ours"])
    verdicts = {row["verdict"] for row in content["ours"]}
    expect(verdicts == {"reproduced"}, ours)
    count = sum(1 for _ in everything(report))
    return f"exit code {ended.code} in {ended.seconds:.0f} s; {count} files of user {uid}; {ours}"


def everything(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def tail(ended: Ended) -> str:
    """The last lines of a nightly's output, as one line."""
    return " | ".join(ended.output.strip().splitlines()[-4:])


def a_nightly_without_network(nightlies: Nightlies, *words: str) -> str:
    """A second nightly downloads nothing, and our scenarios reproduce without a network.

    It cannot test new releases, which may make it inconclusive.
    """
    before = nightlies.inventory()
    expect(before, "the volume is empty")
    line = left_all_files(nightlies, nightlies.run(*words, network="none"), codes=(0, 1, 3))
    changed = before ^ nightlies.inventory()
    expect(not changed, f"the volume has changed: {sorted(changed)[:3]}")
    return f"{line}; {len(before)} files of the volume untouched"


def history_is_complete(nightlies: Nightlies, ended: int) -> str:
    count = len(reading(nightlies.report / "history.jsonl").nightlies)
    expect(count == ended, f"{count} nightlies have ended, not {ended}")
    return f"{count} nightlies have ended"


def ends_at_sigterm(nightlies: Nightlies, *scenarios: str) -> str:
    """A nightly that is stopped during a run ends in seconds, with exit code 130."""
    before = set((nightlies.report / "runs").iterdir())
    name = nightlies.name
    nightlies.start(*scenarios)
    try:
        deadline = time.monotonic() + 300
        while not set((nightlies.report / "runs").iterdir()) - before:
            running = nightlies.engine("inspect", "--format", "{{.State.Running}}", name).stdout
            log = nightlies.engine("logs", name, check=False).stdout[-300:]
            expect(running.strip() == "true", f"it ended before it was stopped: {log}")
            expect(time.monotonic() < deadline, "no run started in 300 s")
            time.sleep(0.2)
        stopped = time.monotonic()
        nightlies.engine("stop", "--time", "60", name)
        seconds = time.monotonic() - stopped
        code = nightlies.engine("inspect", "--format", "{{.State.ExitCode}}", name).stdout.strip()
        expect(code == "130", f"exit code {code}")  # docker would kill it after 60 s: 137
        return f"ended in {seconds:.1f} s, exit code 130"
    finally:
        nightlies.engine("rm", "--force", name, check=False)
