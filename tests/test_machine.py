"""Which lane a scenario gets here, and the facts that go into the evidence."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from harness import catalog, machine
from harness.errors import Inconclusive, Unsupported
from harness.machine import Gpu, choose_lane, visible
from harness.spec import Lane, Outcome, Variant
from tests.another_user import NOBODY, as_nobody, needs_root

TOLD = catalog.scenario("bf16_clip")  # two ranks, either lane
WIDE = replace(TOLD, variants={**TOLD.variants, "wide": Variant("", Outcome.CLEAN, ranks=4)})
GPU_ONLY = replace(TOLD, lanes=(Lane.GPU,))
CPU_ONLY = replace(TOLD, lanes=(Lane.CPU,))


def has(monkeypatch: pytest.MonkeyPatch, gpus: int) -> None:
    monkeypatch.setattr(
        machine, "gpus", lambda: tuple(Gpu(str(n), f"GPU-{n}", "H") for n in range(gpus))
    )


@pytest.mark.parametrize(
    ("scenario", "gpus", "asked", "lane"),
    [
        (TOLD, 2, "auto", Lane.GPU),
        (TOLD, 1, "auto", Lane.CPU),
        (TOLD, 2, "cpu", Lane.CPU),
        (TOLD, 2, "gpu", Lane.GPU),
        (CPU_ONLY, 2, "auto", Lane.CPU),
        (GPU_ONLY, 2, "auto", Lane.GPU),
        (WIDE, 2, "auto", Lane.CPU),  # all variants on one lane
        (WIDE, 4, "auto", Lane.GPU),
    ],
)
def test_the_lane_is_the_one_asked_for_or_the_gpus_that_suffice(
    monkeypatch: pytest.MonkeyPatch, scenario: object, gpus: int, asked: str, lane: Lane
) -> None:
    has(monkeypatch, gpus)
    assert choose_lane(scenario, 2, asked) is lane  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scenario", "asked", "reason"),
    [
        (TOLD, "gpu", "needs 2 GPUs, and this machine has 1"),
        (GPU_ONLY, "auto", "needs 2 GPUs, and this machine has 1"),
        (GPU_ONLY, "cpu", "does not run on the cpu lane"),
        (CPU_ONLY, "gpu", "does not run on the gpu lane"),
    ],
)
def test_a_lane_that_is_not_here_is_unsupported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, scenario: object, asked: str, reason: str
) -> None:
    has(monkeypatch, 1)
    with pytest.raises(Unsupported, match=reason):
        choose_lane(scenario, 2, asked)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("named", "seen"),
    [
        (None, ("A", "B", "C")),
        ("", ()),
        ("2,0", ("C", "A")),
        ("GPU-b", ("B",)),
        ("0,7,1", ("A",)),  # nothing after one that does not exist
        ("-1", ()),
        (" 1 , 2 ", ("B", "C")),
    ],
)
def test_the_visible_gpus_are_those_that_cuda_sees(
    named: str | None, seen: tuple[str, ...]
) -> None:
    found = [("0", "GPU-a1", "A"), ("1", "GPU-b2", "B"), ("2", "GPU-c3", "C")]
    assert tuple(gpu.name for gpu in visible(found, named)) == seen


def test_only_the_environment_that_matters_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SECRET", "hush")
    told = machine.environment()
    assert told["NCCL_DEBUG"] == "INFO"
    assert not {"MY_SECRET", "PATH"} & set(told)


def test_the_facts_can_be_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, 2)
    told = json.loads(json.dumps(machine.facts()))
    assert told["gpus"] == ["H", "H"]
    assert told["cpus"] >= 1
    assert told["torch"]


def test_a_changed_tree_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True)

    monkeypatch.setattr(machine, "ROOT", tmp_path)
    git("init", "--quiet")
    (tmp_path / "file").write_text("")
    git("add", "file")
    git("commit", "--quiet", "--message", "one")
    clean = machine.source()
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("changed")
    assert machine.source() == clean | {"dirty": True}


def test_without_a_repository_the_commit_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.source() == {"commit": None, "dirty": None}


def test_a_bundle_says_which_commit_it_was_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"commit": "c0ffee", "dirty": False}
    (tmp_path / "bundle.json").write_text(json.dumps({"source": told}))
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.source() == told


def test_without_git_the_source_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.source() == {"commit": None, "dirty": None, "unknown": "no git on the PATH"}


def test_a_users_own_things_lie_in_the_cache(tmp_path: Path) -> None:
    assert machine.own_folder(tmp_path / "cache", "gpus") == tmp_path / "cache" / "gpus"


def _lease(cache: Path, temporary: str) -> Iterator[Path | str]:
    tempfile.tempdir = temporary
    try:
        place = machine.own_folder(cache, "gpus")
        with machine.leased(0, place, lambda: None):
            yield place
    except Inconclusive as error:
        yield str(error)


@needs_root
def test_in_somebody_elses_cache_they_lie_among_the_users_temporary_files(shared: Path) -> None:
    cache, temporary = shared / "cache", shared / "tmp"
    cache.mkdir()
    temporary.mkdir()
    temporary.chmod(0o1777)
    own = temporary / f"distributed-bugs-{NOBODY}"
    for _ in range(2):
        with as_nobody(_lease, cache, str(temporary)) as place:
            assert place == own / "gpus"
    assert (own.stat().st_uid, own.stat().st_mode & 0o777) == (NOBODY, 0o700)
    assert not list(cache.iterdir())


@needs_root
@pytest.mark.parametrize("trap", ["folder", "link", "open"])
def test_a_place_that_somebody_else_made_first_is_not_trusted(shared: Path, trap: str) -> None:
    cache, own = shared / "cache", shared / f"distributed-bugs-{NOBODY}"
    cache.mkdir()
    own.symlink_to(cache) if trap == "link" else own.mkdir()
    if trap == "open":
        os.chown(own, NOBODY, NOBODY)
        own.chmod(0o777)
    with as_nobody(_lease, cache, str(shared)) as told:
        assert told == f"{own} is not private to this user: name another HARNESS_CACHE"


def test_no_password_of_an_index_is_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:hush@index.example/simple")
    monkeypatch.setenv("UV_INDEX", "a=https://tok%40en@one.example/x b=https://two.example/@y")
    told = machine.environment()
    assert told["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert told["UV_INDEX"] == "a=https://one.example/x b=https://two.example/@y"
