"""Pins: what is asked of uv, and what becomes of its answers. No index is asked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path

import pytest

from harness import catalog
from harness.errors import Fault, Inconclusive, Unsupported, UserError
from harness.spec import Companion, Scenario
from harness.upstream import index, pins, release_days, resolution, uv
from harness.upstream.pins import Stack
from tests.made_up import published

STACK = Stack({"deepspeed": "0.15.4", "megatron-core": "0.14.0"}, "2024-12-01", *pins.here())
PINS = dict(STACK.pins)
TOLD = catalog.scenario("bf16_clip")


@dataclass
class Uv:
    """Stands in for uv: keeps what it was asked, and answers ``answer``."""

    answer: str = ""
    asked: list[list[str]] = field(default_factory=list)
    stdin: str = ""
    overrides: str = ""

    def __call__(self, arguments: Sequence[str], pins: Mapping[str, str], stdin: str = "") -> str:
        self.asked.append(list(arguments))
        self.stdin = stdin
        if "--override" in arguments:
            self.overrides = Path(self.after("--override")).read_text()
        return self.answer

    def after(self, option: str) -> str:
        return self.asked[-1][self.asked[-1].index(option) + 1]


@pytest.fixture
def fake_uv(monkeypatch: pytest.MonkeyPatch) -> Uv:
    made = Uv()
    monkeypatch.setattr(uv, "run", made)
    return made


@pytest.fixture(autouse=True)
def released_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    known = ["0.16.0", "0.15.4", "0.15.3", "0.15.2", "0.10.0"]
    monkeypatch.setattr(index, "releases", published(*known, yanked="0.15.2"))


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
def test_a_release_that_never_was_gets_its_neighbours(version: str, nearest: str) -> None:
    told = unsatisfiable(MISSING.format(f"deepspeed=={version}"))
    error = uv.explained(told, {"deepspeed": version})
    assert isinstance(error, UserError)
    assert str(error).startswith(f"no release deepspeed=={version}: {nearest}")
    assert "releases go from 0.10.0 to 0.16.0" in str(error)


def test_a_yanked_release_is_said_to_be_that() -> None:
    told = index.no_release("deepspeed", "0.15.2")
    assert told.startswith("deepspeed==0.15.2 was yanked: the nearest are 0.10.0 and 0.15.3")


def test_a_release_whose_neighbours_nobody_knows_is_still_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def silent(*_: object) -> None:
        raise Fault("the package index does not answer")

    monkeypatch.setattr(index, "releases", silent)
    assert index.no_release("up", "1.0") == "no release up==1.0: the nearest are unknown"


def test_a_dependency_that_is_missing_is_not_the_users_mistake() -> None:
    error = uv.explained(unsatisfiable(MISSING.format("hjson==9")), PINS)
    assert isinstance(error, Inconclusive)
    assert "no version of hjson==9" in str(error)


@pytest.mark.parametrize(
    "told",
    [
        unsatisfiable(
            "Because deepspeed was not found in the cache and you require deepspeed==0.15.4",
            "hint: Packages were unavailable because the network was disabled.",
        ),
        "error: Request failed after 3 retries\n  cause: Failed to fetch: `INDEX/deepspeed/`\n",
        "error: error sending request for url (INDEX)\n  cause: dns error: try again",
    ],
)
def test_trouble_with_the_network_is_inconclusive_and_names_the_way_out(told: str) -> None:
    error = uv.explained(told, PINS)
    assert isinstance(error, Fault)
    assert "no network and nothing in the cache for deepspeed==0.15.4" in str(error)
    assert "bundle" in str(error)


def test_a_certificate_that_was_refused_is_told_apart_and_the_way_out_is_named() -> None:
    error = uv.explained(
        "error: Failed to fetch: `INDEX/deepspeed/`\n  cause: error sending request\n"
        "  cause: client error (Connect)\n  cause: invalid peer certificate: UnknownIssuer",
        PINS,
    )
    assert isinstance(error, Fault)
    assert "certificate was refused while looking for deepspeed==0.15.4" in str(error)
    assert "SSL_CERT_FILE" in str(error)


def test_a_package_that_does_not_exist_is_a_mistake_but_not_one_that_another_asks_for() -> None:
    told = "Because {} was not found in the package registry and you require ..."
    error = uv.explained(unsatisfiable(told.format("deepseed")), {"deepseed": "1.0"})
    assert isinstance(error, UserError)
    assert str(error) == "no package 'deepseed' in the index"
    assert isinstance(uv.explained(unsatisfiable(told.format("hjson")), PINS), Inconclusive)


@pytest.mark.parametrize(
    "cause",
    [
        "Because the current Python version (3.13) does not satisfy Python<3.13 and ...",
        "Because numpy==1.20.0 has no usable wheels and you require numpy==1.20.0, we ...",
        "Because pandas==3.0.0 has no wheels with a matching Python version tag and ...",
    ],
)
def test_a_python_that_is_too_young_or_old_is_unsupported(cause: str) -> None:
    error = uv.explained(unsatisfiable(cause), PINS)
    assert isinstance(error, Unsupported)
    assert str(error).endswith(cause)


def test_anything_else_is_inconclusive_and_cut_to_a_line() -> None:
    error = uv.explained("error: build failed\n" + "word " * 1000, PINS)
    assert isinstance(error, Inconclusive)
    assert not isinstance(error, Fault)  # it is the release's own
    assert "\n" not in str(error)
    assert len(str(error)) < 500


def test_pins_are_the_users_then_what_goes_with_them_then_the_scenarios() -> None:
    assert pins.complete(TOLD, {}) == dict(TOLD.pins)
    assert pins.complete(TOLD, {"deepspeed": "0.15.4"})["megatron-core"] == "0.14.0"
    assert pins.complete(TOLD, {"deepspeed": "0.16.0"})["megatron-core"] == "0.16.1"
    given = {"deepspeed": "0.15.4", "megatron-core": "0.13.0"}
    assert pins.complete(TOLD, given) == given


def test_a_companion_may_bring_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (Companion("a<2", {"b": "1"}, ""), Companion("b<2", {"c": "1"}, ""))
    told = scenario({"a": "2", "b": "2", "c": "2"}, both)
    assert pins.complete(told, {"a": "1"}) == {"a": "1", "b": "1", "c": "1"}


def scenario(default: Mapping[str, str], companions: tuple[Companion, ...] = ()) -> Scenario:
    return replace(TOLD, pins=default, companions=companions)


@pytest.mark.parametrize("version", ["abc", "", "1.0 or so", "latest"])
def test_a_version_that_is_none_is_a_mistake(version: str) -> None:
    with pytest.raises(UserError, match=r"is not a version: write one like 0\.15\.4"):
        pins.complete(TOLD, {"deepspeed": version})


@pytest.mark.parametrize(
    ("written", "release"),
    [
        ("v0.15.4", "0.15.4"),
        ("0.15.4.0", "0.15.4"),
        ("0.15.4.0.0", "0.15.4"),
        (" 0.15.4 ", "0.15.4"),
        ("0.16.0-RC1", "0.16.0rc1"),
        ("0.16.0.0.post1", "0.16.0.post1"),
        ("1!2.0.0.0+cu118", "1!2.0.0+cu118"),
        ("4.0.0", "4.0.0"),
        ("5.0", "5.0"),
        ("5", "5"),
        ("2024.1.0.1", "2024.1.0.1"),
    ],
)
def test_a_version_means_its_release_however_it_is_written(written: str, release: str) -> None:
    assert pins.complete(TOLD, {"deepspeed": written})["deepspeed"] == release


@pytest.mark.parametrize(
    ("when", "holds"),
    [("up<0.16", True), ("up<0.15", False), ("up>=0.15.4rc1", True), ("down<9", False)],
)
def test_a_condition_holds_of_the_pins(when: str, holds: bool) -> None:
    assert pins.matches(when, {"up": "0.15.4rc1"}) is holds


def test_the_scenarios_own_release_has_the_day_of_its_lock_file(tmp_path: Path) -> None:
    assert (
        resolution.stack(TOLD, pins.complete(TOLD, {}), tmp_path, python="3.99").date
        == "2026-11-20"
    )


def test_a_day_that_the_user_names_is_taken(tmp_path: Path) -> None:
    assert resolution.stack(TOLD, PINS, tmp_path, day="2020-02-02").date == "2020-02-02"


@pytest.mark.parametrize(
    ("python", "released", "day"),
    [
        ("3.11", "2024-11-08", "2024-11-29"),  # three weeks later
        ("3.11", "2022-04-20", "2023-12-15"),  # not before this Python had wheels
        ("3.13", "2024-11-08", "2024-12-15"),
    ],
)
def test_another_release_has_a_day_of_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: str, released: str, day: str
) -> None:
    monkeypatch.setattr(release_days, "released", lambda name, version, cache: released)
    assert resolution.stack(TOLD, PINS, tmp_path, python=python).date == day


def test_no_release_is_resolved_for_a_day_to_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    today = date.today()
    yesterday = (today - timedelta(days=1)).isoformat()
    monkeypatch.setattr(release_days, "released", lambda name, version, cache: yesterday)
    assert resolution.stack(TOLD, PINS, tmp_path).date == today.isoformat()


def test_the_day_of_a_release_is_asked_once(fake_uv: Uv, tmp_path: Path) -> None:
    fake_uv.answer = "upload-time = 2024-11-09T01:00:00Z\nupload-time = 2024-11-08T16:31:30Z\n"
    for _ in range(2):
        assert release_days.released("deepspeed", "0.15.4", tmp_path) == "2024-11-08"
    assert len(fake_uv.asked) == 1
    assert fake_uv.stdin == "deepspeed==0.15.4\n"


def test_a_release_that_is_spelt_otherwise_is_named_before_anything_is_made(
    fake_uv: Uv, tmp_path: Path
) -> None:
    fake_uv.answer = (
        'lock-version = "1.0"\n[[packages]]\nname = "deepspeed"\nversion = "0.16.0"\n'
        "upload-time = 2024-11-08T16:31:30Z\n"
    )
    with pytest.raises(
        UserError, match=r"^pins\.deepspeed=0\.16: write it .* spelt, pins\.deepspeed=0\.16\.0"
    ):
        release_days.released("deepspeed", "0.16", tmp_path)
    assert not (tmp_path / "releases").exists()
    assert release_days.released("deepspeed", "0.16.0", tmp_path) == "2024-11-08"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"released": 5}',
        '{"released": "soon"}',
        '{"released": "20241108"}',
        "\xff",
        "[" * 100_000,
    ],
    ids=lambda text: text[:20],
)
def test_a_day_that_was_kept_and_is_none_is_named_and_asked_again(
    fake_uv: Uv, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = release_days.release_file(tmp_path, "deepspeed", "0.15.4")
    file.parent.mkdir()
    file.write_text(text, encoding="latin-1")
    fake_uv.answer = "upload-time = 2024-11-08T16:31:30Z\n"
    for _ in range(2):
        assert release_days.released("deepspeed", "0.15.4", tmp_path) == "2024-11-08"
    told = capsys.readouterr().err
    assert (
        told
        == f"harness: {file} was damaged or edited: the day is requested from the index again\n"
    )
    assert len(fake_uv.asked) == 1


def test_an_index_that_tells_no_days_leaves_it_to_the_user(fake_uv: Uv, tmp_path: Path) -> None:
    with pytest.raises(Inconclusive, match="set date="):
        release_days.released("deepspeed", "0.15.4", tmp_path)
    assert not (tmp_path / "releases").exists()


def test_a_lock_is_for_the_day_and_without_torch(fake_uv: Uv) -> None:
    fake_uv.answer = "megatron-core==0.14.0\ndeepspeed==0.15.4\n"
    assert resolution.lock(STACK) == "deepspeed==0.15.4\nmegatron-core==0.14.0\n"
    assert fake_uv.stdin == "deepspeed==0.15.4\nmegatron-core==0.14.0\n"
    assert fake_uv.after("--exclude-newer") == STACK.date
    assert {line.split()[0] for line in fake_uv.overrides.splitlines()} == set(resolution.BASE)
    assert not Path(fake_uv.after("--override")).exists()


def test_what_is_locked_is_not_resolved(fake_uv: Uv) -> None:
    assert resolution.lock(replace(STACK, lock="deepspeed==0.15.4\n")) == "deepspeed==0.15.4\n"
    assert fake_uv.asked == []


def test_an_old_release_is_kept_from_what_breaks_it(fake_uv: Uv) -> None:
    resolution.lock(replace(STACK, pins={"deepspeed": "0.10.3"}))
    assert fake_uv.stdin == "deepspeed==0.10.3\npydantic<2\nnumpy<2\n"


OLD = Stack({"megatron-core": "0.5.0", "deepspeed": "0.15.4"}, "2024-12-15", *pins.here())


@pytest.mark.parametrize("python", ["3.10", "3.11"])
def test_a_release_with_wheels_for_this_python_is_like_any_other(python: str, fake_uv: Uv) -> None:
    resolution.lock(replace(OLD, python=python))
    assert fake_uv.stdin == "megatron-core==0.5.0\ndeepspeed==0.15.4\nnumpy\n"


@pytest.mark.parametrize("python", ["3.12", "3.13"])
def test_elsewhere_the_wheel_of_another_python_is_taken_for_it_alone(
    python: str, fake_uv: Uv, tmp_path: Path
) -> None:
    elsewhere = replace(OLD, python=python, platform="linux-aarch64")
    fake_uv.answer = "deepspeed==0.15.4\nnumpy==1.26.4\n"
    lock = resolution.lock(elsewhere)
    assert fake_uv.stdin == "deepspeed==0.15.4\nnumpy\n"
    assert lock == "deepspeed==0.15.4\nmegatron-core==0.5.0\nnumpy==1.26.4\n"
    fake_uv.asked.clear()
    resolution.install(lock, elsewhere, tmp_path / "site")
    assert [asked[asked.index("--python-version") + 1] for asked in fake_uv.asked] == [
        python,
        "3.11",
    ]
    assert fake_uv.stdin == "megatron-core==0.5.0\n"


def test_an_installation_takes_what_the_lock_says_and_no_more(fake_uv: Uv, tmp_path: Path) -> None:
    resolution.install("up==1.0\n", STACK, tmp_path / "site")
    assert fake_uv.stdin == "up==1.0\n"
    assert "--no-deps" in fake_uv.asked[-1]
    assert fake_uv.after("--target") == str(tmp_path / "site")
    assert fake_uv.after("--link-mode") == "copy"


def test_another_python_is_not_this_one(fake_uv: Uv, tmp_path: Path) -> None:
    other = replace(STACK, python="3.99", platform="linux-aarch64")
    resolution.install("up==1.0\n", other, tmp_path / "site")
    assert fake_uv.after("--python-version") == "3.99"
    assert fake_uv.after("--python-platform") == "aarch64-manylinux_2_28"


def test_a_platform_is_a_linux_one() -> None:
    assert pins.platform_tag("x86_64-manylinux_2_28") == "linux-x86_64"
    with pytest.raises(UserError, match="no platform 'macos': name a Linux one"):
        pins.platform_tag("macos")


def test_a_distribution_is_imported_as_its_module() -> None:
    assert pins.import_name("megatron-core") == "megatron.core"
    assert pins.import_name("some-thing") == "some_thing"


def test_two_threads_do_not_look_for_uv_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looking: list[int] = []

    def look() -> str:
        looking.append(1)
        time.sleep(0.02)
        found = "uv" * len(looking)
        looking.pop()
        return found

    monkeypatch.setattr("uv.find_uv_bin", look)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: uv.binary(), range(4))) == {"uv"}
