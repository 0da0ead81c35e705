"""Which lane a scenario gets here, and the facts that go into the evidence."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Lane, Outcome, Variant
from harness.rank.gpu_places import of_rank
from harness.run.job import choose_lane
from harness.system import machine
from harness.system.errors import Inconclusive, Unsupported
from harness.system.machine import visible
from tests.another_user import NOBODY, as_nobody, needs_root
from tests.made_up import set_gpus
from tests.sandbox import git

BF16_CLIP = catalog.scenario("bf16_clip")  # two ranks, either lane
WIDE = replace(
    BF16_CLIP, variants={**BF16_CLIP.variants, "wide": Variant("", Outcome.CLEAN, ranks=4)}
)
GPU_ONLY = replace(BF16_CLIP, lanes=(Lane.GPU,))
CPU_ONLY = replace(BF16_CLIP, lanes=(Lane.CPU,))


@pytest.mark.parametrize(
    ("scenario", "gpus", "choice", "lane"),
    [
        (BF16_CLIP, 2, "auto", Lane.GPU),
        (BF16_CLIP, 1, "auto", Lane.GPU),
        (BF16_CLIP, 0, "auto", Lane.CPU),
        (BF16_CLIP, 2, "cpu", Lane.CPU),
        (CPU_ONLY, 2, "auto", Lane.CPU),
        (GPU_ONLY, 2, "auto", Lane.GPU),
        (WIDE, 1, "auto", Lane.GPU),
    ],
)
def test_the_lane_is_the_chosen_one_or_the_gpus_if_there_is_one(
    monkeypatch: pytest.MonkeyPatch, scenario: object, gpus: int, choice: str, lane: Lane
) -> None:
    set_gpus(monkeypatch, gpus)
    assert choose_lane(scenario, 2, choice) is lane  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("scenario", "choice", "reason"),
    [
        (BF16_CLIP, "gpu", "needs 1 GPU, and this machine has 0"),
        (GPU_ONLY, "auto", "needs 1 GPU, and this machine has 0"),
        (GPU_ONLY, "cpu", "does not run on the cpu lane"),
        (CPU_ONLY, "gpu", "does not run on the gpu lane"),
    ],
)
def test_an_unavailable_lane_is_unsupported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, scenario: object, choice: str, reason: str
) -> None:
    set_gpus(monkeypatch, 0)
    with pytest.raises(Unsupported, match=reason):
        choose_lane(scenario, 2, choice)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gpus", "free", "lane"),
    [(1, 2000, Lane.GPU), (1, 1999, Lane.CPU), (2, 1000, Lane.GPU), (4, 0, Lane.GPU)],
)
def test_ranks_share_gpus_that_have_memory_for_them(
    monkeypatch: pytest.MonkeyPatch, gpus: int, free: int, lane: Lane
) -> None:
    set_gpus(monkeypatch, gpus, free)
    assert choose_lane(WIDE, 4, "auto") is lane
    if lane is Lane.CPU:
        with pytest.raises(Unsupported, match=r"4 ranks on a GPU need 2000 MiB .* 1999 MiB are"):
            choose_lane(WIDE, 4, "gpu")


@pytest.mark.parametrize(
    ("ranks", "gpus", "places"),
    [
        (4, ["0"], ["0", "0", "0", "0"]),
        (4, ["1", "3"], ["1", "1", "3", "3"]),
        (3, ["0", "1"], ["0", "0", "1"]),
    ],
)
def test_each_rank_that_shares_a_gpu_is_a_host_of_its_own(
    ranks: int, gpus: list[str], places: list[str]
) -> None:
    changes = [of_rank(_variables(rank, ranks), gpus) for rank in range(ranks)]
    assert [one["CUDA_VISIBLE_DEVICES"] for one in changes] == places
    assert len({one["NCCL_HOSTID"] for one in changes}) == ranks
    assert {one["LOCAL_RANK"] for one in changes} == {"0"}
    assert {one["NCCL_SOCKET_IFNAME"] for one in changes} == {"lo"}


def test_ranks_with_a_gpu_each_stay_on_one_host() -> None:
    assert of_rank(_variables(1, 2), ["0", "1"]) == {}
    assert of_rank(_variables(1, 2), []) == {}


def test_what_a_user_has_set_for_nccl_stays() -> None:
    variables = {**_variables(1, 2), "NCCL_HOSTID": "mine", "NCCL_SOCKET_IFNAME": "eth0"}
    assert not of_rank(variables, ["0"]).keys() & {"NCCL_HOSTID", "NCCL_SOCKET_IFNAME"}


def test_ranks_of_several_nodes_need_a_network() -> None:
    variables = {**_variables(1, 2), "WORLD_SIZE": "4"}
    assert "NCCL_SOCKET_IFNAME" not in of_rank(variables, ["0"])


def _variables(rank: int, ranks: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
    }


@pytest.mark.parametrize(
    ("variable", "names"),
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
    variable: str | None, names: tuple[str, ...]
) -> None:
    gpus = [("0", "GPU-a1", "A"), ("1", "GPU-b2", "B"), ("2", "GPU-c3", "C")]
    assert tuple(gpu.name for gpu in visible(gpus, variable)) == names


def test_only_the_environment_that_matters_is_recorded_and_without_passwords(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("MY_SECRET", "hush")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:hush@index.example/simple")
    monkeypatch.setenv("UV_INDEX", "a=https://tok%40en@one.example/x b=https://two.example/@y")
    recorded = machine.environment()
    assert recorded["NCCL_DEBUG"] == "INFO"
    assert not {"MY_SECRET", "PATH"} & set(recorded)
    assert recorded["UV_DEFAULT_INDEX"] == "https://index.example/simple"
    assert recorded["UV_INDEX"] == "a=https://one.example/x b=https://two.example/@y"


def test_the_facts_can_be_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    set_gpus(monkeypatch, 2)
    facts = json.loads(json.dumps(machine.facts()))
    assert facts["gpus"] == ["H", "H"]
    assert facts["cpus"] >= 1
    assert facts["torch"]


def test_the_source_is_the_commit_of_a_repository_or_of_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "ROOT", tmp_path)
    assert machine.source() == {"commit": None, "dirty": None}
    git(tmp_path, "init", "--quiet")
    (tmp_path / "file").write_text("")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    clean = machine.source()
    assert len(clean["commit"]) == 40
    assert clean["dirty"] is False
    (tmp_path / "file").write_text("changed")
    assert machine.source() == clean | {"dirty": True}
    source = {"commit": "c0ffee", "dirty": False}
    (tmp_path / "bundle.json").write_text(json.dumps({"source": source}))
    assert machine.source() == source


def test_without_git_the_source_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.source() == {"commit": None, "dirty": None, "unknown": "no git on the PATH"}


def test_a_users_own_files_are_in_the_cache(tmp_path: Path) -> None:
    assert machine.own_folder(tmp_path / "cache", "gpus") == tmp_path / "cache" / "gpus"


def _lease(cache: Path, temporary: str) -> Iterator[Path | str]:
    tempfile.tempdir = temporary
    try:
        folder = machine.own_folder(cache, "gpus")
        with machine.leased(0, folder, lambda: None):
            yield folder
    except Inconclusive as error:
        yield str(error)


@needs_root
def test_with_another_users_cache_they_are_among_the_temporary_files(shared: Path) -> None:
    cache, temporary = shared / "cache", shared / "tmp"
    cache.mkdir()
    temporary.mkdir()
    temporary.chmod(0o1777)
    user_folder = temporary / f"distributed-bugs-{NOBODY}"
    for _ in range(2):
        with as_nobody(_lease, cache, str(temporary)) as folder:
            assert folder == user_folder / "gpus"
    assert (user_folder.stat().st_uid, user_folder.stat().st_mode & 0o777) == (NOBODY, 0o700)
    assert not list(cache.iterdir())


@needs_root
@pytest.mark.parametrize("trap", ["folder", "link", "open"])
def test_a_folder_that_another_user_made_first_is_not_trusted(shared: Path, trap: str) -> None:
    cache, user_folder = shared / "cache", shared / f"distributed-bugs-{NOBODY}"
    cache.mkdir()
    user_folder.symlink_to(cache) if trap == "link" else user_folder.mkdir()
    if trap == "open":
        os.chown(user_folder, NOBODY, NOBODY)
        user_folder.chmod(0o777)
    with as_nobody(_lease, cache, str(shared)) as message:
        assert message == f"{user_folder} is not private to this user: name another HARNESS_CACHE"


@needs_root
@pytest.mark.parametrize(
    ("name", "owner", "mode", "is_trusted"),
    [
        ("", 0, 0o755, True),
        ("", 0, 0o1777, True),  # as the volume of a container
        ("guard", 0, 0o775, True),
        ("", NOBODY, 0o755, False),
        ("", 0, 0o777, False),
        ("guard", NOBODY, 0o755, False),
        ("guard", 0, 0o777, False),
    ],
)
def test_a_cache_in_which_another_user_may_write_is_not_trusted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    owner: int,
    mode: int,
    is_trusted: bool,
) -> None:
    """guard ran the sitecustomize.py that another user had put there."""
    (tmp_path / "guard").mkdir()
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path))
    os.chown(tmp_path / name, owner, owner)
    (tmp_path / name).chmod(mode)
    if is_trusted:
        assert machine.cache_folder() == tmp_path
    else:
        folder = re.escape(str(tmp_path / name))
        with pytest.raises(Inconclusive, match=f"^{folder} is not private to this user: name"):
            machine.cache_folder()


def test_leases_share_gpus_only_with_leases_that_share_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = tuple(machine.Gpu(str(n), f"GPU-{n}", "H100") for n in range(2))
    monkeypatch.setattr(machine, "gpus", lambda: cards)

    class Full(Exception):
        """The lease would have to wait."""

    def wait() -> None:
        raise Full

    def lease(count: int, sharing: int) -> AbstractContextManager[tuple[machine.Gpu, ...]]:
        return machine.leased(count, tmp_path, wait, sharing)

    with lease(2, 2) as first, lease(1, 2) as second, lease(1, 2):
        assert (first, second) == (cards, cards[:1])
        with pytest.raises(Full), lease(1, 2):
            pass
    with lease(1, 2), lease(1, 1) as alone, pytest.raises(Full), lease(2, 2):
        pass
    assert alone == cards[1:]
    with lease(2, 1) as both:
        assert both == cards
