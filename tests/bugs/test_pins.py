"""Pins: the commands of uv, and the meaning of its output. No index is read."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType

import pytest

from harness.bugs import catalog, pins
from harness.bugs.api.spec import Companion
from harness.bugs.packages import import_name, upstreams
from harness.bugs.pins import Stack
from harness.releases import index, releases, resolution, uv
from harness.system.errors import Fault, Inconclusive, Unsupported, UserError
from tests.made_up import published

STACK = Stack({"deepspeed": "0.15.4", "megatron-core": "0.14.0"}, "2024-12-01", *pins.here())
PINS = dict(STACK.pins)
RUN = uv.run  # tests without a launch may not call uv
OLD = {"megatron-core": "0.5.0", "deepspeed": "0.15.4"}
BF16_CLIP = catalog.scenario("bf16_clip")


@dataclass
class Uv:
    """Stands in for uv: keeps the arguments of each call, and returns ``output``."""

    output: str = ""
    calls: list[list[str]] = field(default_factory=list)
    stdin: str = ""
    overrides: str = ""

    def __call__(
        self,
        arguments: Sequence[str],
        pins: Mapping[str, str],
        stdin: str = "",
        lists: Mapping[str, Sequence[str]] = MappingProxyType({}),
    ) -> str:
        self.calls.append(list(arguments))
        self.stdin = stdin
        self.overrides = "".join(f"{line}\n" for line in lists.get("--override", ()))
        return self.output

    def after(self, option: str) -> str:
        return self.calls[-1][self.calls[-1].index(option) + 1]


@pytest.fixture
def fake_uv(monkeypatch: pytest.MonkeyPatch) -> Uv:
    stand_in = Uv()
    monkeypatch.setattr(uv, "run", stand_in)
    return stand_in


@pytest.fixture(autouse=True)
def released_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = ["0.16.0", "0.15.4", "0.15.3", "0.15.2", "0.10.0"]
    monkeypatch.setattr(index, "releases", published(*versions, yanked="0.15.2"))


def unsatisfiable(cause: str, hint: str = "") -> str:
    return f"error: No solution found when resolving dependencies\n  cause: {cause}\n\n{hint}"


MISSING = "Because there is no version of {0} and you require {0}, we can conclude ..."


@pytest.mark.parametrize(
    ("version", "nearest"),
    [
        ("0.15.35", "the nearest are 0.15.4 and 0.16.0"),
        ("0.15.3.post1", "the nearest are 0.15.3 and 0.15.4"),
        ("99", "the nearest are 0.16.0;"),
        ("0.1", "the nearest are 0.10.0;"),
    ],
)
def test_the_message_about_a_missing_release_names_its_neighbours(
    version: str, nearest: str
) -> None:
    output = unsatisfiable(MISSING.format(f"deepspeed=={version}"))
    error = uv.explained(output, {"deepspeed": version}, "3.12")
    assert isinstance(error, UserError)
    assert str(error).startswith(f"no release deepspeed=={version}: {nearest}")
    assert "releases go from 0.10.0 to 0.16.0" in str(error)


def test_a_yanked_release_and_one_with_unknown_neighbours_are_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yanked = "deepspeed==0.15.2 was yanked: the nearest are 0.10.0 and 0.15.3"
    assert index.no_release("deepspeed", "0.15.2").startswith(yanked)

    def silent(*_: object) -> None:
        raise Fault("the package index does not respond")

    monkeypatch.setattr(index, "releases", silent)
    assert index.no_release("up", "1.0") == "no release up==1.0: the nearest are unknown"


OFFLINE = r"no network and nothing in the cache for deepspeed==0\.15\.4.*bundle"
UNKNOWN = "Because {} was not found in the package registry and you require ..."
PYTHON = "Because the current Python version (3.13) does not satisfy Python<3.13 and ..."
NO_WHEELS = "Because numpy==1.20.0 has no usable wheels and you require numpy==1.20.0, we ..."
NO_TAG = "Because pandas==3.0.0 has no wheels with a matching Python version tag and ..."
NOT_CACHED = unsatisfiable(
    "Because deepspeed was not found in the cache and you require deepspeed==0.15.4",
    "hint: Packages were unavailable because the network was disabled.",
)
RETRIED = "error: Request failed after 3 retries\n  cause: Failed to fetch: `INDEX/deepspeed/`\n"
DNS = "error: error sending request for url (INDEX)\n  cause: dns error: try again"
CERTIFICATE = (
    "error: Failed to fetch: `INDEX/deepspeed/`\n  cause: error sending request\n"
    "  cause: client error (Connect)\n  cause: invalid peer certificate: UnknownIssuer"
)
REFUSED = r"certificate was refused while looking for deepspeed==0\.15\.4.*SSL_CERT_FILE"


@pytest.mark.parametrize(
    ("output", "kind", "message"),
    [
        (NOT_CACHED, Fault, OFFLINE),
        (RETRIED, Fault, OFFLINE),
        (DNS, Fault, OFFLINE),
        (CERTIFICATE, Fault, REFUSED),
        (unsatisfiable(UNKNOWN.format("deepspeed")), UserError, "^no package 'deepspeed' in the "),
        (unsatisfiable(UNKNOWN.format("hjson")), Inconclusive, "hjson"),
        (unsatisfiable(MISSING.format("hjson==9")), Inconclusive, "no version of hjson==9"),
        (unsatisfiable(PYTHON), Unsupported, r"for Python 3\.12: " + re.escape(PYTHON) + "$"),
        (unsatisfiable(NO_WHEELS), Unsupported, re.escape(NO_WHEELS) + "$"),
        (unsatisfiable(NO_TAG), Unsupported, re.escape(NO_TAG) + "$"),
        ("error: build failed\n" + "word " * 1000, Inconclusive, "^.{20,500}$"),
    ],
    ids=lambda value: value[-30:] if isinstance(value, str) else value.__name__,
)
def test_an_error_of_uv_is_one_line_of_the_right_kind(
    output: str, kind: type[Exception], message: str
) -> None:
    error = uv.explained(output, PINS, "3.12")
    assert type(error) is kind
    assert re.search(message, str(error))
    assert "\n" not in str(error)


def test_pins_are_the_users_then_their_companions_then_the_scenarios() -> None:
    assert pins.complete(BF16_CLIP, {}) == dict(BF16_CLIP.pins)
    assert pins.complete(BF16_CLIP, {"deepspeed": "0.15.4"})["megatron-core"] == "0.14.0"
    assert pins.complete(BF16_CLIP, {"deepspeed": "0.16.0"})["megatron-core"] == "0.16.1"
    pins_of_user = {"deepspeed": "0.15.4", "megatron-core": "0.13.0"}
    assert pins.complete(BF16_CLIP, pins_of_user) == pins_of_user
    both = (Companion("a<2", {"b": "1"}, ""), Companion("b<2", {"c": "1"}, ""))
    chain = replace(BF16_CLIP, pins={"a": "2", "b": "2", "c": "2"}, companions=both)
    assert pins.complete(chain, {"a": "1"}) == {"a": "1", "b": "1", "c": "1"}


def test_recorded_pins_complete_to_themselves_without_the_companions() -> None:
    overlap = catalog.scenario("pl_overlap")
    recorded = pins.complete(overlap, {"pytorch-lightning": "1.7.0"})
    assert "torchmetrics" in recorded
    named = pins.without_companions(overlap, recorded)
    assert named == {"pytorch-lightning": "1.7.0"}
    assert pins.complete(overlap, named) == recorded


@pytest.mark.parametrize("version", ["", "1.0 or so", "latest"])
def test_an_invalid_version_is_a_mistake(version: str) -> None:
    with pytest.raises(UserError, match=r"is not a version: write one like 0\.15\.4"):
        pins.complete(BF16_CLIP, {"deepspeed": version})


@pytest.mark.parametrize(
    ("written", "release"),
    [
        ("v0.15.4", "0.15.4"),
        ("0.15.4.0.0", "0.15.4"),
        (" 0.15.4 ", "0.15.4"),
        ("0.16.0-RC1", "0.16.0rc1"),
        ("0.16.0.0.post1", "0.16.0.post1"),
        ("1!2.0.0.0+cu118", "1!2.0.0+cu118"),
        ("4.0.0", "4.0.0"),
        ("5", "5"),
        ("2024.1.0.1", "2024.1.0.1"),
    ],
)
def test_a_version_is_normalized(written: str, release: str) -> None:
    assert pins.complete(BF16_CLIP, {"deepspeed": written})["deepspeed"] == release


@pytest.mark.parametrize(
    ("when", "holds"),
    [("up<0.16", True), ("up<0.15", False), ("up>=0.15.4rc1", True), ("down<9", False)],
)
def test_a_condition_is_about_the_pins(when: str, holds: bool) -> None:
    assert pins.matches(when, {"up": "0.15.4rc1"}) is holds


def test_the_day_is_the_users_or_that_of_the_lock_file(tmp_path: Path) -> None:
    defaults = pins.complete(BF16_CLIP, {})
    assert resolution.stack(BF16_CLIP, defaults, tmp_path, python="3.99").date == "2026-11-20"
    assert resolution.stack(BF16_CLIP, PINS, tmp_path, day="2020-02-02").date == "2020-02-02"


TODAY = date.today()


@pytest.mark.parametrize(
    ("python", "released", "day"),
    [
        ("3.11", "2024-11-08", "2024-11-29"),  # three weeks later
        ("3.11", "2022-04-20", "2023-12-15"),  # not before this Python had wheels
        ("3.13", "2024-11-08", "2024-12-15"),
        ("3.11", str(TODAY - timedelta(days=1)), str(TODAY)),  # not in the future
    ],
)
def test_another_release_has_its_own_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: str, released: str, day: str
) -> None:
    monkeypatch.setattr(releases, "released", lambda *_: released)
    assert resolution.stack(BF16_CLIP, PINS, tmp_path, python=python).date == day


def test_the_day_of_a_release_is_requested_once(fake_uv: Uv, tmp_path: Path) -> None:
    fake_uv.output = "upload-time = 2024-11-09T01:00:00Z\nupload-time = 2024-11-08T16:31:30Z\n"
    for _ in range(2):
        assert releases.released("deepspeed", "0.15.4", tmp_path) == "2024-11-08"
    assert len(fake_uv.calls) == 1
    assert fake_uv.stdin == "deepspeed==0.15.4\n"


def test_a_release_that_is_spelt_differently_is_a_mistake(fake_uv: Uv, tmp_path: Path) -> None:
    fake_uv.output = (
        'lock-version = "1.0"\n[[packages]]\nname = "deepspeed"\nversion = "0.16.0"\n'
        "upload-time = 2024-11-08T16:31:30Z\n"
    )
    message = r"^pins\.deepspeed=0\.16: write it .* spelt, pins\.deepspeed=0\.16\.0"
    with pytest.raises(UserError, match=message):
        releases.released("deepspeed", "0.16", tmp_path)
    assert not (tmp_path / "releases").exists()
    assert releases.released("deepspeed", "0.16.0", tmp_path) == "2024-11-08"


INVALID = ["", "{", "[]", "null", '{"released": 5}', '{"released": "soon"}', "\xff", "[" * 100_000]


@pytest.mark.parametrize("text", [*INVALID, '{"released": "20241108"}'], ids=lambda t: t[:20])
def test_an_invalid_stored_day_is_reported_and_requested_again(
    fake_uv: Uv, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = releases.release_file(tmp_path, "deepspeed", "0.15.4")
    file.parent.mkdir()
    file.write_text(text, encoding="latin-1")
    fake_uv.output = "upload-time = 2024-11-08T16:31:30Z\n"
    for _ in range(2):
        assert releases.released("deepspeed", "0.15.4", tmp_path) == "2024-11-08"
    line = "was damaged or edited: the day is requested from the index again\n"
    assert capsys.readouterr().err == f"harness: {file} {line}"
    assert len(fake_uv.calls) == 1


def test_the_user_must_set_the_day_if_the_index_has_none(fake_uv: Uv, tmp_path: Path) -> None:
    with pytest.raises(Inconclusive, match="set date="):
        releases.released("deepspeed", "0.15.4", tmp_path)
    assert not (tmp_path / "releases").exists()


def test_a_lock_is_for_the_day_and_without_torch(fake_uv: Uv) -> None:
    fake_uv.output = "megatron-core==0.14.0\ndeepspeed==0.15.4\n"
    assert resolution.lock(STACK) == "deepspeed==0.15.4\nmegatron-core==0.14.0\n"
    assert fake_uv.stdin == "deepspeed==0.15.4\nmegatron-core==0.14.0\n"
    assert fake_uv.after("--exclude-newer") == STACK.date
    assert {line.split()[0] for line in fake_uv.overrides.splitlines()} == set(resolution.BASE)
    fake_uv.calls.clear()
    assert resolution.lock(replace(STACK, lock="deepspeed==0.15.4\n")) == "deepspeed==0.15.4\n"
    assert fake_uv.calls == [], "a lock was resolved again"


@pytest.mark.parametrize("name", ["mosaicml-streaming", "lhotse"])
def test_a_lock_leaves_out_what_hinders_or_is_not_imported(fake_uv: Uv, name: str) -> None:
    """dataclasses, which lhotse 1.18 needs, hides Python's own: torchrun ended with -9."""
    resolution.lock(replace(STACK, pins={name: "1.18.0"}))
    left_out = {line.split()[0] for line in fake_uv.overrides.splitlines()}
    assert left_out == {*resolution.BASE, *upstreams()[name].unused}


@pytest.mark.parametrize(
    ("stack_pins", "python", "lines"),
    [
        ({"deepspeed": "0.10.3"}, "3.11", "deepspeed==0.10.3\npydantic<2\nnumpy<2\n"),
        (OLD, "3.10", "megatron-core==0.5.0\ndeepspeed==0.15.4\nnumpy\n"),
        (OLD, "3.11", "megatron-core==0.5.0\ndeepspeed==0.15.4\nnumpy\n"),
    ],
)
def test_a_resolution_gets_constraints_for_old_releases(
    stack_pins: dict[str, str], python: str, lines: str, fake_uv: Uv
) -> None:
    resolution.lock(replace(STACK, pins=stack_pins, python=python))
    assert fake_uv.stdin == lines


@pytest.mark.parametrize("python", ["3.12", "3.13"])
def test_a_release_without_wheels_for_a_python_is_installed_from_those_of_another(
    python: str, fake_uv: Uv, tmp_path: Path
) -> None:
    stack = replace(STACK, pins=OLD, python=python, platform="linux-aarch64")
    fake_uv.output = "deepspeed==0.15.4\nnumpy==1.26.4\n"
    lock = resolution.lock(stack)
    assert fake_uv.stdin == "deepspeed==0.15.4\nnumpy\n"
    assert lock == "deepspeed==0.15.4\nmegatron-core==0.5.0\nnumpy==1.26.4\n"
    fake_uv.calls.clear()
    resolution.install(lock, stack, tmp_path / "site")
    pythons = [call[call.index("--python-version") + 1] for call in fake_uv.calls]
    assert pythons == [python, "3.11"]
    assert fake_uv.stdin == "megatron-core==0.5.0\n"


def test_an_installation_takes_exactly_the_lock(fake_uv: Uv, tmp_path: Path) -> None:
    stack = replace(STACK, python="3.99", platform="linux-aarch64")
    resolution.install("up==1.0\n", stack, tmp_path / "site")
    assert fake_uv.stdin == "up==1.0\n"
    assert "--no-deps" in fake_uv.calls[-1]
    assert fake_uv.after("--target") == str(tmp_path / "site")
    assert fake_uv.after("--link-mode") == "copy"
    assert fake_uv.after("--python-version") == "3.99"
    assert fake_uv.after("--python-platform") == "aarch64-manylinux_2_28"
    resolution.install("up==1.0\n", STACK, tmp_path / "site")
    assert "--python-platform" not in fake_uv.calls[-1]


def test_a_platform_is_linux_and_a_module_has_the_name_of_its_distribution() -> None:
    assert pins.platform_tag("x86_64-manylinux_2_28") == "linux-x86_64"
    with pytest.raises(UserError, match="no platform 'macos': name a Linux one"):
        pins.platform_tag("macos")
    assert import_name("megatron-core") == "megatron.core"
    assert import_name("some-thing") == "some_thing"


def test_two_threads_do_not_look_for_uv_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looking: list[int] = []

    def look() -> str:
        looking.append(1)
        time.sleep(0.02)
        binary = "uv" * len(looking)
        looking.pop()
        return binary

    monkeypatch.setattr("uv.find_uv_bin", look)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: uv.binary(), range(4))) == {"uv"}


def test_a_bundle_without_a_release_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    with pytest.raises(Fault, match="a bundle has the releases of its scenarios"):
        uv.binary()


@pytest.mark.parametrize(
    ("release", "python", "refused"),
    [
        ("0.4.11", "3.11.2", True),
        ("0.4.11", "3.11.4", False),
        ("0.4.11", "3.10.14", False),
        ("0.4.12", "3.11.2", False),
    ],
)
def test_a_patch_release_of_python_may_be_unable_to_import_a_release(
    release: str, python: str, refused: bool
) -> None:
    why = pins.why_not_imported({"pytorch-ignite": release}, python)
    assert why.startswith("Python 3.11.2 cannot import pytorch-ignite 0.4.11") is refused


def test_the_error_of_a_bundle_names_the_python_of_its_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = subprocess.CompletedProcess([], 1, "", unsatisfiable(NO_WHEELS))
    monkeypatch.setattr(uv, "execute", lambda *_, **__: failed)
    with pytest.raises(Unsupported, match=r"for Python 3\.13: "):
        RUN(["pip", "install", "--python-version", "3.13"], PINS)


def test_a_folder_without_a_slash_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("accelerate").mkdir()
    with pytest.raises(UserError, match=r"0\.15\.4, or \./accelerate for the folder"):
        pins._version("accelerate", "accelerate")
