"""A nightly with a fake index, fake releases and fake runs: nothing is launched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs import result_file
from harness.bugs.api.spec import Verdict
from harness.bugs.results import Result, Status
from harness.publish.history import Nightly, newest_certain, reading, writing
from harness.releases import sources
from harness.run import cells
from harness.system.errors import Fault, HarnessError, UserError
from tests.nightly_world import NO, PACKAGE, SCENARIO, UNCLEAR, YES, World, cell, release, world
from tests.schemas import complaints

__all__ = ["world"]

Capture = pytest.CaptureFixture[str]
FILE = Path("history.jsonl")


@pytest.fixture(autouse=True)
def _record(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.13.0 is recorded as not affected, on 2024-03-01."""
    cells = [cell("0.13.0", NO)]
    monkeypatch.setattr(result_file, "statuses", lambda name: cells if name == SCENARIO else [])


def watch(*words: str) -> int:
    return main(["watch", f"scenario={SCENARIO}", *words])


def nights() -> list[Nightly]:
    return reading(FILE).nightlies


def changes() -> list[tuple[str, str | None]]:
    return [(change.kind, change.version) for night in nights() for change in night.changes]


def appeared(world: World, version: str, day: str, status: Status | HarnessError = NO) -> None:
    world.releases.append(release(version, day))
    world.statuses[version] = status


def test_a_first_nightly_tests_the_newest_release(world: World, capsys: Capture) -> None:
    assert watch() == 0
    assert world.versions == ["0.13.1"]
    assert world.ran == [SCENARIO]
    (tonight,) = nights()
    assert tonight.day == "2024-03-04"
    assert tonight.ended
    assert tonight.facts["index"] is True
    assert [result.version for result in tonight.results] == ["0.13.1"]
    assert [own.result.verdict for own in tonight.ours.values()] == ["reproduced"]
    line = "nightly of 2024-03-04: 1 release tested, 1 scenario of ours (1 reproduced), no change"
    assert line in capsys.readouterr().out


def test_a_second_nightly_tests_only_new_releases(world: World) -> None:
    watch()
    world.tested.clear()
    world.day = "2024-03-05"
    assert watch() == 0
    assert world.versions == []
    appeared(world, "0.13.2", "2024-03-05")
    assert watch() == 0
    assert world.versions == ["0.13.2"]
    assert world.ran == [SCENARIO] * 3


def test_an_affected_release_ends_the_nightly_with_exit_code_1_and_advice(
    world: World, capsys: Capture
) -> None:
    watch()
    appeared(world, "0.13.2", "2024-03-04", YES)
    assert watch() == 1
    assert changes() == [("now affected", "0.13.2")]
    out = capsys.readouterr().out
    assert "deepspeed 0.13.2 (2024-03-04) is affected by clip_max_for_min; 0.13.1 was not." in out
    assert f"harness run scenario={SCENARIO} variant=released pins.deepspeed=0.13.2" in out
    assert watch() == 0  # reported once
    appeared(world, "0.13.3", "2024-03-04")
    assert watch() == 0
    assert changes()[-1] == ("no longer affected", "0.13.3")
    assert "is not affected by clip_max_for_min; 0.13.2 was." in capsys.readouterr().out


def test_an_inconclusive_release_is_worse_and_is_tested_again(world: World) -> None:
    world.statuses["0.13.1"] = UNCLEAR
    assert watch() == 1
    assert watch() == 0  # already reported
    world.statuses["0.13.1"] = NO
    assert watch() == 0
    assert world.versions == ["0.13.1"] * 3
    assert changes() == [("no longer certain", "0.13.1")]


def test_an_unsupported_release_is_no_change_and_is_not_tested_again(world: World) -> None:
    world.statuses["0.13.1"] = Status.UNSUPPORTED
    assert watch() == 0
    assert watch() == 0
    assert changes() == []
    assert world.versions == ["0.13.1"], "the same Python cannot install it on the next day, either"


def test_a_release_that_could_not_be_tested_has_no_result(world: World, capsys: Capture) -> None:
    world.statuses["0.13.1"] = Fault("no room on the disk")
    appeared(world, "0.13.2", "2024-03-03", UserError("no release deepspeed==0.13.2"))
    assert watch() == 3
    assert changes() == []
    out = capsys.readouterr().out
    assert "deepspeed 0.13.2 (2024-03-03), clip_max_for_min: no release deepspeed==0.13.2" in out
    assert watch() == 3
    world.statuses.clear()
    assert watch() == 0
    assert world.versions[-1] == "0.13.2"


def test_a_scenario_of_ours_that_no_longer_reproduces_is_reported_once_and_keeps_failing(
    world: World, capsys: Capture
) -> None:
    watch()
    world.verdict = Verdict.NOT_REPRODUCED
    assert watch() == 1
    assert f"{SCENARIO} no longer reproduces on the releases" in capsys.readouterr().out
    assert watch() == 1
    assert changes() == [("no longer reproduces", None)]
    world.verdict = Verdict.REPRODUCED
    assert watch() == 0
    assert changes() == [("no longer reproduces", None)]


def test_a_yanked_release_is_not_tested_and_keeps_its_status(world: World) -> None:
    world.statuses["0.13.1"] = UNCLEAR
    watch()
    world.releases[-1] = release("0.13.1", "2024-01-23", yanked=True)
    assert watch() == 0
    assert world.versions == ["0.13.1"]
    history = reading(FILE)
    assert newest_certain(history.results())[SCENARIO, PACKAGE, "0.13.1"].cell.status is UNCLEAR
    assert [r.version for r in history.releases.values() if r.yanked] == ["0.13.1"]


def test_without_a_network_a_nightly_tests_the_releases_in_the_history(
    world: World, capsys: Capture
) -> None:
    world.fault = Fault("no network")
    assert watch("--history", "empty.jsonl") == 3
    assert world.versions == []
    world.fault = None
    world.statuses["0.13.1"] = UNCLEAR
    watch()
    world.statuses.clear()
    world.fault = Fault("the package index does not respond (ConnectionError)")
    assert watch() == 0
    assert world.versions == ["0.13.1"] * 2
    assert "the package index does not respond" in capsys.readouterr().out
    assert nights()[-1].facts["index"] is False
    appeared(world, "0.13.2", "2024-03-04")
    world.fault = None
    watch()
    assert world.versions[-1] == "0.13.2"  # the nightly without a network missed nothing


def test_a_nightly_that_was_killed_leaves_nothing_and_the_next_one_reports_everything(
    world: World, capsys: Capture
) -> None:
    watch()
    before = FILE.read_bytes()
    appeared(world, "0.13.2", "2024-03-04", YES)
    appeared(world, "0.13.3", "2024-03-04")
    world.killed_after = 2
    assert watch() == 130
    assert "interrupted" in capsys.readouterr().err
    assert FILE.read_bytes() == before
    world.killed_after = None
    assert watch() == 1
    flips = [("now affected", "0.13.2"), ("no longer affected", "0.13.3")]
    assert changes() == flips


def test_only_one_nightly_at_a_time_writes_to_a_history(world: World, capsys: Capture) -> None:
    with writing(FILE):
        assert watch() == 3
    assert "another command is writing to history.jsonl" in capsys.readouterr().err
    assert world.tested == []


def test_a_clock_that_was_set_back_is_reported(world: World, capsys: Capture) -> None:
    watch()
    world.day = "2024-03-03"
    assert watch() == 3
    world.day = "2023-12-31"
    assert watch("--history", "another.jsonl") == 3
    lines = capsys.readouterr().err.splitlines()
    assert ["clock right" in line for line in lines] == [True, True]
    assert len(nights()) == 1


@pytest.mark.slow
def test_all_scenarios_are_run_by_default(world: World, capsys: Capture) -> None:
    world.releases = []
    assert main(["watch"]) == 0
    assert len(world.ran) == len(set(world.ran)) > 15
    assert main(["watch", "scenario=all"]) == 0
    world.ran.clear()
    assert main(["watch", f"scenario={SCENARIO},bf16_clip"]) == 0
    assert sorted(world.ran) == ["bf16_clip", SCENARIO]


def worse_night(world: World) -> None:
    watch()
    for version, status in (("0.13.2", YES), ("0.13.3", YES), ("0.14.0", UNCLEAR)):
        appeared(world, version, "2024-03-04", status)


def test_the_summary_has_changes_for_the_worse_and_tables(world: World) -> None:
    worse_night(world)
    assert watch("--summary", "night.md") == 1
    text = Path("night.md").read_text()
    head = "## nightly of 2024-03-04: 3 releases tested, 1 scenario of ours (1 reproduced)"
    assert text.startswith(head)
    worse = text[text.index("### Worse") : text.index("### Releases tested")]
    run = f"`python -m harness run scenario={SCENARIO} variant=released pins.deepspeed=0.13.2`"
    assert run in worse
    assert "deepspeed 0.13.3 (" not in worse
    assert f"| {SCENARIO} | deepspeed | 0.13.2 | 2024-03-04 | affected | now affected |  |" in text
    assert f"| {SCENARIO} | reproduced |" in text[text.index("### Our own scenarios") :]


def test_text_of_upstream_is_escaped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    watch()
    appeared(world, "0.13.2", "2024-03-04", UNCLEAR)

    def nasty(*words: Any, **more: Any) -> Result:
        cell = world.find(*words, **more)
        assert isinstance(cell, Result)
        return replace(cell, reason="<img src=x> | `a` [b](c)\x1b[2J")

    monkeypatch.setattr(cells, "find", nasty)
    assert watch("--summary", "night.md") == 1
    text = Path("night.md").read_text()
    assert "<img" not in text.replace("\\<img", "")
    assert "\x1b" not in text
    row = next(line for line in text.splitlines() if line.startswith("| clip") and "0.13.2" in line)
    assert row.replace("\\|", "").count("|") == 8


def test_a_release_that_stays_inconclusive_is_one_line(world: World, capsys: Capture) -> None:
    world.statuses["0.13.1"] = UNCLEAR
    watch()
    capsys.readouterr()
    watch()
    out = capsys.readouterr().out
    assert f"1 release tested again, still without a certain status: {SCENARIO}" in out
    assert "why not certain" not in out  # the table does not repeat earlier reports


def test_json_has_all_results(world: World) -> None:
    worse_night(world)
    watch("--json", "night.json")
    content = json.loads(Path("night.json").read_text())
    assert complaints("watch.json", content) == []
    assert content["exit_code"] == 1
    assert content["nightly"]["day"] == "2024-03-04"
    assert [tested["version"] for tested in content["tested"]] == ["0.13.2", "0.13.3", "0.14.0"]
    changes = [(change["kind"], change["version"]) for change in content["changes"]]
    assert changes[0] == ("now affected", "0.13.2")


@pytest.mark.parametrize(
    ("verdict", "code"),
    [(Verdict.NOT_REPRODUCED, 1), (Verdict.INCONCLUSIVE, 3), (Verdict.UNSUPPORTED, 0)],
)
def test_the_verdict_of_our_scenario_decides_the_exit_code(
    world: World, verdict: Verdict, code: int
) -> None:
    world.verdict = verdict
    assert watch() == code


def test_a_nightly_reports_a_regression_of_a_source_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = iter("ab")

    def pinned(name: str, value: str, _: Path) -> str:
        return f"0.14.0+g{next(commits) * 12}"

    def of(name: str, version: str, _: Path) -> sources.Source:
        return sources.Source(name, version, "a" * 40, "Title", "2024-03-04", "", 0, False, "")

    monkeypatch.setattr(sources, "pinned", pinned)
    monkeypatch.setattr(sources, "of", of)
    world.statuses = {f"0.14.0+g{'a' * 12}": YES, f"0.14.0+g{'b' * 12}": YES}
    assert watch("--source", f"{PACKAGE}=../checkout") == 1
    world.day = "2024-03-05"
    assert watch("--source", f"{PACKAGE}=../checkout") == 0, "the same regression, one commit later"
    assert changes() == [("now affected", f"0.14.0+g{'a' * 12}")]
