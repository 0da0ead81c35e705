"""Facts of recorded runs that ranks tell otherwise: gone, empty, or odd. None is believed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.spec import Outcome
from tests.recording import FOLDER, Recording

Change = Callable[[dict[str, Any]], None]


def told(**facts: Any) -> Change:
    def change(record: dict[str, Any]) -> None:
        record.update(facts)

    change.__name__ = ",".join(f"{name}={str(value)[:40]!r}" for name, value in facts.items())
    return change


Case = tuple[str, str, int | None, str, Change, str]
"""The scenario, the trial and its act, the rank (None for all), the kind of its records that are
changed, how, and what is said of it."""

MODULE = {"version": "1", "file": "/x.py"}

HOUSE: list[Case] = [
    ("bf16_clip", "fixed", 1, "upstream", told(apex="inf"), "apex is 'inf', and no state of apex"),
    ("bf16_clip", "fixed", 1, "upstream", told(apex=""), "apex is '', and no state"),
    ("bf16_clip", "fixed", 1, "upstream", told(apex="used: "), "apex is 'used: ', and no state"),
    ("bf16_clip", "fixed", 1, "upstream", told(apex="installed"), "apex is not alike on ranks 0"),
    ("sampler_shards", "buggy", 0, "start", told(python="3.11.8"), "python is not alike on ranks"),
    ("sampler_shards", "buggy", 0, "start", told(torch="2.13.1+cpu"), "torch is not alike"),
    ("sampler_shards", "buggy", 0, "start", told(threads=2), "threads is not alike on ranks 0 and"),
    ("sampler_shards", "buggy", 0, "begin", told(host="elsewhere"), "host is not alike"),
    ("streaming_map_resume", "fixed", 0, "start", told(python="inf"), "'inf', and no version"),
    ("streaming_map_resume", "fixed", 0, "start", told(python="3.9.1"), "run.json names 3.11.7"),
    ("streaming_map_resume", "fixed", 0, "start", told(torch="2.9.0"), "run.json names 2.13.0"),
    ("streaming_map_resume", "fixed", 0, "start", told(nccl="2.28.9"), "no GPU, on the cpu lane"),
    ("streaming_map_resume", "fixed", 0, "shims", told(uses={}), "are not those of run.json"),
    ("streaming_map_resume", "fixed", 0, "upstream", told(modules={"x": MODULE}), "x, which is"),
    ("streaming_map_resume", "fixed", 0, "upstream", told(files={"x": None}), "not watched"),
]

ALL = [*HOUSE]


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Recording]:
    """A copy of a scenario's recorded run, to tamper with."""

    def of(scenario: str) -> Recording:
        return Recording(shutil.copytree(FOLDER / f"{scenario}_cpu", tmp_path / scenario))

    return of


def tamper(run: Recording, place: str, rank: int | None, kind: str, change: Change) -> None:
    """Change all records of a kind, of one rank or of all."""
    files = sorted((run.folder / place).glob("rank_*.jsonl"))
    for number in range(len(files)) if rank is None else [rank]:
        with run.records(place, number) as records:
            for record in [each for each in records if each["kind"] == kind]:
                change(record)


def named(case: Case) -> str:
    return "-".join(str(part) for part in (*case[:4], case[4].__name__))


@pytest.mark.parametrize("case", ALL, ids=named)
def test_ranks_whose_records_of_a_kind_say_this_are_not_believed(
    case: Case, recorded: Callable[[str], Recording]
) -> None:
    scenario, place, rank, kind, change, said = case
    run = recorded(scenario)
    tamper(run, place, rank, kind, change)
    trial = run.trial(place.partition("/")[0])
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert said in trial.reason
