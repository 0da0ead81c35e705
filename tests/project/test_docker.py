"""The container's shell scripts, without a Docker engine and with fake commands.

``make docker`` runs them in a container, see ``docker_nightly``.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.another_user import NOBODY, needs_root
from tests.sandbox import hear_signals

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

STAND_IN = f"""#!/bin/sh
'''exec' {shlex.quote(sys.executable)} "$0" "$@"
' '''
import json, os, signal, sys, time
command, log = sys.argv[3], os.environ["LOG"]
kept = ("HARNESS_RUNS", "SSL_CERT_FILE", "PIP_CERT")
with open(log, "a") as file:
    print(json.dumps([sys.argv[3:], {{name: os.environ.get(name) for name in kept}}]), file=file)
def end(*_):
    open(log + ".ended." + command, "w").close()
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
if os.environ.get("LINGERS") == command:
    open(log + ".begun", "w").close()
    for _ in range(600):
        time.sleep(0.1)  # one long sleep would not end by a signal that comes just before it
sys.exit(int(os.environ.get(command.upper(), 0)))
"""
"""A fake Python: it writes its arguments to a file, and ends as the environment says. A shell
starts it, as the path of Python may contain a space; the shell ignores the quotes."""


class Nightlies:
    """Nightlies with a fake Python."""

    def __init__(self, folder: Path) -> None:
        self.report, self.log = folder / "report", folder / "log"
        self.report.mkdir()
        python = folder / "bin" / "python3"
        python.parent.mkdir()
        python.write_text(STAND_IN)
        python.chmod(0o755)
        path = f"{python.parent}:/usr/bin:/bin"
        self.environment = {"PATH": path, "REPORT": str(self.report), "LOG": str(self.log)}

    def begin(self, *words: str, user: int | None = None, **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(ROOT / "docker" / "nightly"), *words],
            env={**self.environment, **env},
            text=True,
            stderr=subprocess.PIPE,
            user=user,
            preexec_fn=hear_signals,
        )

    def run(self, *words: str, user: int | None = None, **env: str) -> tuple[int, str]:
        """The exit code of a nightly, and its stderr."""
        nightly = self.begin(*words, user=user, **env)
        _, errors = nightly.communicate(timeout=30)
        return nightly.returncode, errors

    def commands(self) -> list[tuple[list[str], dict[str, str | None]]]:
        """The started commands: the words after ``-m harness``, and some of the environment."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(json.loads(line)) for line in lines]

    def signalled(self, command: str, *numbers: signal.Signals) -> int:
        """The exit code of a nightly that gets signals while this command runs."""
        nightly = self.begin(LINGERS=command)
        try:
            deadline = time.monotonic() + 30
            while not self.log.with_name("log.begun").exists():
                assert time.monotonic() < deadline, "the command did not start"
                time.sleep(0.01)
            for number in numbers:
                nightly.send_signal(number)
            nightly.communicate(timeout=30)
            return nightly.returncode
        finally:
            nightly.kill()


@pytest.fixture
def nightlies(tmp_path: Path) -> Nightlies:
    return Nightlies(tmp_path)


def test_a_nightly_runs_watch_and_site_for_the_mounted_folder(nightlies: Nightlies) -> None:
    assert nightlies.run("scenario=bf16_clip", "lane=cpu") == (0, "")
    (watch, environment), (site, _) = nightlies.commands()
    report = nightlies.report
    assert watch[:3] == ["watch", "scenario=bf16_clip", "lane=cpu"]
    assert options(watch) == {
        "--history": f"{report}/history.jsonl",
        "--summary": f"{report}/summary.md",
        "--json": f"{report}/night.json",
    }
    assert site[0] == "site"
    assert options(site) == {"--out": f"{report}/site", "--history": f"{report}/history.jsonl"}
    assert environment["HARNESS_RUNS"] == f"{report}/runs"


def options(words: list[str]) -> dict[str, str]:
    at = next(index for index, word in enumerate(words) if word.startswith("--"))
    return dict(zip(words[at::2], words[at + 1 :: 2], strict=True))


@pytest.mark.parametrize(
    ("watch", "site", "code", "commands"),
    [
        (1, 0, 1, ["watch", "site"]),
        (3, 0, 3, ["watch", "site"]),
        (0, 3, 3, ["watch", "site"]),
        (1, 3, 1, ["watch", "site"]),
        (2, 0, 2, ["watch"]),  # a mistake in the command
    ],
)
def test_the_exit_code_is_that_of_watch_unless_only_the_site_fails(
    nightlies: Nightlies, watch: int, site: int, code: int, commands: list[str]
) -> None:
    assert nightlies.run(WATCH=str(watch), SITE=str(site))[0] == code
    assert [words[0] for words, _ in nightlies.commands()] == commands


@pytest.mark.parametrize("command", ["watch", "site"])
@pytest.mark.parametrize(
    "numbers", [(signal.SIGTERM, signal.SIGINT), (signal.SIGINT,), (signal.SIGHUP,)]
)
def test_a_signal_ends_the_nightly_and_its_command(
    nightlies: Nightlies, numbers: tuple[signal.Signals, ...], command: str
) -> None:
    assert nightlies.signalled(command, *numbers) == 130
    assert nightlies.log.with_name(f"log.ended.{command}").exists()
    assert nightlies.commands()[-1][0][0] == command, "something was started after the signal"


@pytest.mark.parametrize(("variable", "advice"), [("REPORT", "-v"), ("SSL_CERT_FILE", "mount it")])
def test_a_missing_mount_is_a_mistake_in_one_line(
    nightlies: Nightlies, variable: str, advice: str
) -> None:
    environment: dict[str, Any] = {variable: f"{nightlies.report}/none"}
    code, errors = nightlies.run(**environment)
    assert (code, errors.count("\n")) == (2, 1)
    assert advice in errors
    assert not nightlies.commands()


@needs_root
def test_a_folder_of_another_user_is_reported_with_the_next_step(shared: Path) -> None:
    if not all(path.stat().st_mode & 0o001 for path in (ROOT / "docker/nightly", *ROOT.parents)):
        pytest.skip("another user cannot read the checkout")
    code, errors = Nightlies(shared).run(user=NOBODY)
    assert (code, errors.count("\n")) == (3, 1)
    assert "--user" in errors


def test_pip_and_uv_get_the_same_certificate(nightlies: Nightlies, tmp_path: Path) -> None:
    certificate = tmp_path / "company.crt"
    certificate.write_text("a certificate\n")
    # Compose mounts /dev/null if the caller has no certificate.
    for file, expected in ((str(certificate), str(certificate)), ("/dev/null", None)):
        nightlies.run(SSL_CERT_FILE=file)
        _, environment = nightlies.commands()[-1]
        assert environment["SSL_CERT_FILE"] == environment["PIP_CERT"] == expected


@pytest.mark.parametrize(
    "name", re.findall(r"^ARG (\w+)", (ROOT / "docker/Dockerfile").read_text(), flags=re.MULTILINE)
)
def test_build_arguments_are_documented_and_in_the_compose_file(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "docker.md").read_text()
    assert f"        {name}: " in (ROOT / "docker" / "compose.yaml").read_text()


@pytest.mark.parametrize("name", ["HOME", "HARNESS_CACHE", "UV_CACHE_DIR"])
def test_any_user_can_write_where_a_nightly_writes(name: str) -> None:
    """Users that the image does not know run it: --user 1234."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    folder = re.search(rf"\b{name}=(\S+)", dockerfile)
    opened = re.search(r"chmod 1777 (.*?);?$", dockerfile, flags=re.MULTILINE)
    assert folder is not None
    assert opened is not None
    assert any(folder.group(1).startswith(each) for each in opened.group(1).split())


def complaints(workflow: Path) -> list[str]:
    """What actionlint reports about a workflow; skips the test if it is not installed."""
    program = shutil.which("actionlint")
    if program is None:
        pytest.skip("no actionlint on the PATH")
    command = [program, "-oneline", str(workflow)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert process.returncode in (0, 1), process.stderr
    return process.stdout.splitlines()


def test_actionlint_accepts_the_workflow_and_rejects_a_mistake(tmp_path: Path) -> None:
    assert [complaint for workflow in WORKFLOWS for complaint in complaints(workflow)] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_has_read_permission_by_default_and_pins_its_actions(workflow: Path) -> None:
    text = workflow.read_text()
    permissions = re.findall(r"^permissions:\n((?:  .*\n)+)", text, flags=re.MULTILINE)
    assert permissions == ["  contents: read\n"]
    actions = re.findall(r"uses: (\S+)", text)
    assert actions
    assert all(re.search(r"^\./$|@v\d+(\.\d+)*$", action) for action in actions)
