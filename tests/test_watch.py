"""A night on an index, on releases and on runs that are made up: nothing is launched."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.__main__ import main
from harness.errors import Fault, UserError
from harness.spec import Verdict
from harness.sweep import affected
from harness.sweep import changes as compared
from harness.sweep.cells import Status
from harness.sweep.history import History, Kind, reading, writing
from tests.made_up import scenario_module
from tests.nightly_world import NO, PACKAGE, SCENARIO, UNCLEAR, YES, World, release, world

__all__ = ["world"]

Capture = pytest.CaptureFixture[str]
FILE = Path("history.sqlite")
REPLAY = ("--as-of", "2024-02-05:2024-03-04:7")


@pytest.fixture(autouse=True)
def _record(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.13.0 is recorded, on 2024-03-01, as every fact of a made up record."""
    fact = {
        "pins": {PACKAGE: "0.13.0"},
        "status": "not affected",
        "reason": "why",
        "step": None,
        "lane": "cpu",
        "python": "3.11.7",
        "torch": "2.13.0",
        "date": "2024-03-01",
    }
    monkeypatch.setattr(affected, "of", lambda name: [fact] if name == SCENARIO else [])


def watch(*words: str) -> int:
    return main(["watch", f"scenario={SCENARIO}", *words])


def changes(file: Path = FILE) -> list[tuple[str, str | None]]:
    with reading(file) as history:
        return [(change.kind, change.version) for _, change in history.changes()]


def appeared(world: World, version: str, day: str) -> None:
    world.releases.append(release(version, day))


def test_a_history_begins_with_the_record_and_the_newest_release(
    world: World, capsys: Capture
) -> None:
    assert watch() == 0
    assert world.versions == ["0.13.1"]
    assert world.ran == [SCENARIO]
    with reading(FILE) as history:
        recorded, tonight = history.nights()
        assert (recorded.kind, recorded.day) == (Kind.RECORDED, "2024-03-01")
        assert (tonight.kind, tonight.day) == (Kind.NIGHT, "2024-03-04")
        assert recorded.ended
        assert tonight.ended
        assert tonight.facts["index"] is True
        assert [(a.night, a.version) for a in history.answers()] == [
            (recorded.id, "0.13.0"),
            (tonight.id, "0.13.1"),
        ]
        assert [own.verdict for own in history.verdicts()] == ["reproduced"]
    out = capsys.readouterr().out
    assert (
        "night of 2024-03-04: 1 release asked, 1 scenario of ours (1 reproduced), no change" in out
    )


def test_a_second_night_asks_what_has_appeared_and_nothing_else(world: World) -> None:
    watch()
    world.asked.clear()
    world.day = "2024-03-05"
    assert watch() == 0
    assert world.versions == []
    appeared(world, "0.13.2", "2024-03-05")
    assert watch() == 0
    assert world.versions == ["0.13.2"]
    assert world.ran == [SCENARIO] * 3


def test_a_release_that_is_worse_ends_the_night_with_1_and_what_to_do(
    world: World, capsys: Capture
) -> None:
    watch()
    appeared(world, "0.13.2", "2024-03-04")
    world.answers["0.13.2"] = YES
    assert watch() == 1
    assert changes() == [("now affected", "0.13.2")]
    out = capsys.readouterr().out
    assert "deepspeed 0.13.2 (2024-03-04) has clip_max_for_min, which 0.13.1 had not" in out
    assert (
        f"python -m harness run scenario={SCENARIO} variant=released pins.deepspeed=0.13.2" in out
    )
    assert watch() == 0  # told once


def test_a_release_that_is_better_is_told_and_no_failure(world: World, capsys: Capture) -> None:
    world.answers["0.13.1"] = YES
    watch()
    appeared(world, "0.13.2", "2024-03-04")
    assert watch() == 0
    assert changes()[-1] == ("no longer affected", "0.13.2")
    assert "no longer has clip_max_for_min, which 0.13.1 had" in capsys.readouterr().out


def test_a_release_that_gives_no_answer_is_worse_and_asked_again(world: World) -> None:
    world.answers["0.13.1"] = UNCLEAR
    assert watch() == 1
    assert watch() == 0  # told already
    world.answers["0.13.1"] = NO
    assert watch() == 0
    assert world.versions == ["0.13.1"] * 3
    assert changes() == [("no longer answers", "0.13.1"), ("answers again", "0.13.1")]


def test_what_this_machine_cannot_run_is_told_once_and_is_not_worse(world: World) -> None:
    world.answers["0.13.1"] = Status.UNSUPPORTED
    assert watch() == 0
    assert watch() == 0
    assert changes() == [("cannot be asked here", "0.13.1")]


def test_what_could_not_be_asked_is_no_answer_of_the_release(world: World, capsys: Capture) -> None:
    world.answers["0.13.1"] = Fault("no room on the disk")
    appeared(world, "0.13.2", "2024-03-03")
    world.answers["0.13.2"] = UserError("no release deepspeed==0.13.2")
    assert watch() == 3
    assert changes() == []
    out = capsys.readouterr().out
    assert "deepspeed 0.13.2 (2024-03-03), clip_max_for_min: no release deepspeed==0.13.2" in out
    assert watch() == 3
    world.answers.clear()
    assert watch() == 0
    assert world.versions[-1] == "0.13.2"


def test_a_scenario_of_ours_that_no_longer_reproduces_is_worse(
    world: World, capsys: Capture
) -> None:
    watch()
    world.verdict = Verdict.NOT_REPRODUCED
    assert watch() == 1
    assert changes() == [("no longer reproduces", None)]
    assert f"{SCENARIO} no longer reproduces on the releases" in capsys.readouterr().out
    world.verdict = Verdict.REPRODUCED
    assert watch() == 0
    assert changes()[-1] == ("reproduces again", None)


def test_a_scenario_of_ours_that_still_does_not_reproduce_is_told_once_and_never_green(
    world: World,
) -> None:
    world.verdict = Verdict.NOT_REPRODUCED
    assert watch() == 1
    assert watch("--junitxml", "night.xml") == 1
    assert changes() == [("no longer reproduces", None)]
    (suite,) = ElementTree.parse("night.xml").getroot()
    assert suite.get("failures") == "1"


def test_an_inconclusive_run_of_ours_ends_the_night_with_3(world: World) -> None:
    world.verdict = Verdict.INCONCLUSIVE
    assert watch() == 3
    assert changes() == []


def test_what_this_machine_cannot_run_of_ours_is_no_failure(world: World) -> None:
    world.verdict = Verdict.UNSUPPORTED
    assert watch() == 0


def test_a_release_that_was_yanked_is_told_and_its_answer_kept(
    world: World, capsys: Capture
) -> None:
    watch()
    capsys.readouterr()
    world.releases[-1] = release("0.13.1", "2024-01-23", yanked=True)
    assert watch() == 0
    assert world.versions == ["0.13.1"]
    assert changes() == [("yanked", "0.13.1")]
    out = capsys.readouterr().out
    assert "deepspeed 0.13.1 was yanked, and is not asked any more" in out
    assert f"Kept are its last answers to {SCENARIO} (not affected)." in out
    with reading(FILE) as history:
        assert history.known(SCENARIO)[PACKAGE, "0.13.1"].cell.status is NO
        assert {r.version: r.yanked for r in history.releases()} == {
            "0.13.0": False,
            "0.13.1": True,
        }
    assert watch() == 0
    assert changes() == [("yanked", "0.13.1")]


def test_a_release_that_was_yanked_before_its_answer_is_not_asked_again(world: World) -> None:
    world.answers["0.13.1"] = UNCLEAR
    watch()
    world.releases[-1] = release("0.13.1", "2024-01-23", yanked=True)
    assert watch() == 0
    assert world.versions == ["0.13.1"]


def test_without_a_network_a_night_asks_what_the_history_knows(
    world: World, capsys: Capture
) -> None:
    world.answers["0.13.1"] = UNCLEAR
    watch()
    world.answers.clear()
    world.fault = Fault("the package index does not answer (ConnectionError)")
    assert watch() == 0
    assert world.versions == ["0.13.1"] * 2
    assert "the package index does not answer" in capsys.readouterr().out
    with reading(FILE) as history:
        assert history.nights()[-1].facts["index"] is False
    appeared(world, "0.13.2", "2024-03-04")
    world.fault = None
    watch()
    assert world.versions[-1] == "0.13.2"  # the night without a network has missed nothing


def test_without_a_network_and_without_a_history_nothing_was_learnt(world: World) -> None:
    world.fault = Fault("no network")
    assert watch() == 3
    assert world.versions == []
    assert world.ran == [SCENARIO]


def kill_after(world: World, answers: int, capsys: Capture) -> None:
    world.killed_after = answers
    assert watch() == 130
    assert "interrupted" in capsys.readouterr().err
    world.killed_after = None


def test_a_night_that_was_killed_is_gone_on_with_and_tells_all(
    world: World, capsys: Capture
) -> None:
    watch()
    world.asked.clear()
    for version, day in (("0.13.2", "2024-03-04"), ("0.13.3", "2024-03-04")):
        appeared(world, version, day)
    world.answers["0.13.2"] = YES
    world.releases[0] = release("0.13.0", "2024-01-10", yanked=True)
    kill_after(world, 1, capsys)
    with reading(FILE) as history:
        killed = history.nights()[-1]
        assert killed.ended is None
        assert [a.version for a in history.answers(killed.id)] == ["0.13.2"]
    assert watch() == 1
    assert world.versions == ["0.13.2", "0.13.3"]  # neither of them twice
    with reading(FILE) as history:
        assert history.nights()[-1].id == killed.id
        assert history.nights()[-1].ended
    assert changes() == [
        ("yanked", "0.13.0"),
        ("now affected", "0.13.2"),
        ("no longer affected", "0.13.3"),
    ]


def test_our_runs_that_a_killed_night_had_done_are_not_done_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    told = compared.of_ours
    monkeypatch.setattr(compared, "of_ours", interrupted)
    assert watch() == 130
    monkeypatch.setattr(compared, "of_ours", told)
    assert watch() == 0
    assert world.ran == [SCENARIO]


def test_a_record_that_was_killed_while_it_was_kept_is_kept_whole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = History.end
    monkeypatch.setattr(History, "end", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert watch() == 130
    monkeypatch.setattr(History, "end", end)
    assert watch() == 0
    with reading(FILE) as history:
        assert [n.kind for n in history.nights()] == [Kind.RECORDED, Kind.NIGHT]
        assert all(n.ended for n in history.nights())
        assert len(history.answers(history.nights()[0].id)) == 1


def test_two_nights_at_once_are_one_too_many(world: World, capsys: Capture) -> None:
    with writing(FILE):
        assert watch() == 3
    assert "another night is being written to history.sqlite" in capsys.readouterr().err
    assert world.asked == []


def test_a_clock_that_was_set_back_is_told(world: World, capsys: Capture) -> None:
    watch()
    world.day = "2024-03-03"
    assert watch() == 3
    world.day = "2023-12-31"
    (Path("another.sqlite")).touch()
    assert watch("--history", "another.sqlite") == 3
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert all("is this machine's clock right?" in line or "clock right" in line for line in err)
    with reading(FILE) as history:
        assert len(history.nights()) == 2


def test_a_replay_sees_the_index_as_it_was(world: World, capsys: Capture) -> None:
    appeared(world, "0.13.2", "2024-02-12")
    appeared(world, "0.13.3", "2024-02-23")
    world.answers["0.13.2"] = YES
    world.day = "2026-11-21"
    assert watch(*REPLAY) == 1
    assert world.versions == ["0.13.1", "0.13.2", "0.13.3"]
    assert world.ran == []
    # Resolved as of the replayed night, while their dependencies had not settled.
    assert [config.date for config in world.asked] == ["2024-02-05", "2024-02-12", "2024-02-26"]
    with reading(FILE) as history:
        nights = history.nights()
        assert [n.day for n in nights] == [
            "2024-02-05",
            "2024-02-12",
            "2024-02-19",
            "2024-02-26",
            "2024-03-04",
        ]
        assert {n.kind for n in nights} == {Kind.REPLAY}
        found = [(nights[n - 1].day, c.kind, c.version) for n, c in history.changes()]
        assert found == [
            ("2024-02-12", "now affected", "0.13.2"),
            ("2024-02-26", "no longer affected", "0.13.3"),
        ]


def test_a_replay_that_was_killed_goes_on_with_the_same_command(
    world: World, capsys: Capture
) -> None:
    appeared(world, "0.13.2", "2024-02-12")
    world.killed_after = 1
    assert watch(*REPLAY) == 130
    world.killed_after = None
    assert watch(*REPLAY) == 0
    assert world.versions == ["0.13.1", "0.13.2"]
    with reading(FILE) as history:
        assert len(history.nights()) == 5


def test_a_nightly_may_go_on_with_a_history_that_was_replayed(world: World) -> None:
    appeared(world, "0.13.2", "2024-02-12")
    watch("--as-of", "2024-02-01")
    with reading(FILE) as history:
        assert [r.version for r in history.releases()] == ["0.13.0", "0.13.1"]
    assert watch() == 0
    assert world.versions == ["0.13.1", "0.13.2"]


@pytest.mark.parametrize(
    ("day", "why"),
    [
        ("2024-03-05", "--as-of 2024-03-05 is yet to come: it is 2024-03-04"),
        ("yesterday", "--as-of yesterday is no day: write one like 2024-03-04"),
        ("20240301", "--as-of 20240301 is no day"),
        ("", "is no day"),
        ("2024-02-01:2024-03-01", "--as-of 2024-02-01:2024-03-01: write a day"),
        ("2024-02-01:2024-03-01:0", "write a day"),
        ("2024-02-01:2024-03-01:x", "write a day"),
        ("2024-03-01:2024-02-01:7", "2024-02-01 lies before 2024-03-01"),
        ("2024-02-01:2024-03-09:7", "is yet to come"),
    ],
)
def test_a_day_that_cannot_be_meant_is_a_mistake(
    world: World, capsys: Capture, day: str, why: str
) -> None:
    assert watch("--as-of", day) == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1
    assert not FILE.exists()


def test_a_replay_goes_forward_and_has_a_history_of_its_own(world: World, capsys: Capture) -> None:
    watch("--as-of", "2024-02-05")
    assert watch("--as-of", "2024-02-04") == 2
    assert "go forward, or name another file" in capsys.readouterr().err
    watch("--history", "nightly.sqlite")
    assert watch("--history", "nightly.sqlite", "--as-of", "2024-02-05") == 2
    assert "nightly.sqlite has nights of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["scenario=nothing"], "no scenario 'nothing'"),
        (["scenario="], "no scenario ''"),
        (["pins.deepspeed=0.13.2"], "no override of a night 'pins.deepspeed'"),
        (["variant=all"], "no override of a night 'variant'"),
        (["scenario.lr=1"], "no override of a night 'scenario.lr'"),
        (["--multirun"], "unrecognized arguments: --multirun"),
        (["launch=tpu"], "Choices: auto, cpu, gpu"),
        (["--summary", "nowhere/night.md"], "no folder nowhere for night.md"),
        (["--junitxml", "nowhere/night.xml"], "no folder nowhere for night.xml"),
        (["--json", "nowhere/night.json"], "no folder nowhere for night.json"),
        (["--history", "nowhere/h.sqlite"], "no folder nowhere for h.sqlite"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    world: World, capsys: Capture, words: list[str], why: str
) -> None:
    assert main(["watch", *words]) == 2
    err = capsys.readouterr().err
    assert why in err
    assert err.count("\n") == 1
    assert world.asked == []
    assert not FILE.exists()


def test_all_scenarios_are_asked_by_default(world: World, capsys: Capture) -> None:
    world.releases = []
    assert main(["watch"]) == 0
    assert len(world.ran) == len(set(world.ran)) > 15
    assert main(["watch", "scenario=all"]) == 0
    world.ran.clear()
    assert main(["watch", f"scenario={SCENARIO},bf16_clip"]) == 0
    assert sorted(world.ran) == ["bf16_clip", SCENARIO]


def test_a_broken_scenario_is_inconclusive_and_not_the_others_loss(
    world: World, more_scenarios: Path, capsys: Capture
) -> None:
    scenario_module(more_scenarios, "broken_one", "import nothing_of_that_name\n")
    assert main(["watch", f"scenario={SCENARIO},broken_one"]) == 0  # World's run takes it
    assert world.versions == ["0.13.1"]
    assert set(world.ran) == {SCENARIO, "broken_one"}


def worse_night(world: World) -> None:
    watch()
    for version, answer in (("0.13.2", YES), ("0.13.3", YES), ("0.14.0", UNCLEAR)):
        appeared(world, version, "2024-03-04")
        world.answers[version] = answer


def test_the_summary_has_what_got_worse_and_tables(world: World) -> None:
    worse_night(world)
    assert watch("--summary", "night.md") == 1
    text = Path("night.md").read_text()
    assert text.startswith(
        "## night of 2024-03-04: 3 releases asked, 1 scenario of ours (1 reproduced)"
    )
    worse = text[text.index("### Worse") : text.index("### Releases asked")]
    assert "deepspeed 0.13.2" in worse
    assert (
        f"`python -m harness run scenario={SCENARIO} variant=released pins.deepspeed=0.13.2`"
        in worse
    )
    assert "deepspeed 0.13.3 (" not in worse
    assert f"| {SCENARIO} | deepspeed | 0.13.2 | 2024-03-04 | affected | now affected |  |" in text
    assert f"| {SCENARIO} | reproduced |" in text[text.index("### Our own record") :]


def test_what_upstream_wrote_is_no_markup(world: World) -> None:
    watch()
    appeared(world, "0.13.2", "2024-03-04")
    world.answers["0.13.2"] = UNCLEAR
    ask = world.ask

    def nasty(*words: object, **more: object) -> object:
        from dataclasses import replace

        return replace(ask(*words, **more), reason="<img src=x> | `a` [b](c)\x1b[2J")  # type: ignore[arg-type]

    world_ask = pytest.MonkeyPatch()
    world_ask.setattr("harness.sweep.cells.ask", nasty)
    try:
        assert watch("--summary", "night.md", "--junitxml", "night.xml") == 1
    finally:
        world_ask.undo()
    text = Path("night.md").read_text()
    assert "<img" not in text.replace("\\<img", "")
    assert "\x1b" not in text
    row = next(line for line in text.splitlines() if line.startswith("| clip") and "0.13.2" in line)
    assert row.replace("\\|", "").count("|") == 8
    ElementTree.parse("night.xml")


def test_junit_has_a_case_for_each_of_ours_and_each_release(world: World) -> None:
    worse_night(world)
    assert watch("--junitxml", "night.xml") == 1
    (suite,) = ElementTree.parse("night.xml").getroot()
    cases = {(c.get("classname"), c.get("name")): [e.tag for e in c] for c in suite}
    assert cases == {
        ("watch.ours", SCENARIO): [],
        (f"watch.{SCENARIO}", "deepspeed 0.13.2"): ["failure"],
        (f"watch.{SCENARIO}", "deepspeed 0.13.3"): ["system-out"],
        (f"watch.{SCENARIO}", "deepspeed 0.14.0"): ["failure"],
    }
    assert [suite.get(k) for k in ("tests", "failures", "errors", "skipped")] == [*"4200"]


def test_a_release_that_stays_silent_is_one_line_and_skipped_in_junit(
    world: World, capsys: Capture
) -> None:
    world.answers["0.13.1"] = UNCLEAR
    watch()
    capsys.readouterr()
    assert watch("--junitxml", "night.xml") == 0
    (suite,) = ElementTree.parse("night.xml").getroot()
    assert suite.get("skipped") == "1"
    out = capsys.readouterr().out
    assert f"1 release asked again, still without an answer: {SCENARIO}" in out
    assert "why there is no answer" not in out  # no table of what everybody knows


@pytest.mark.parametrize(
    ("verdict", "tag"),
    [
        (Verdict.NOT_REPRODUCED, "failure"),
        (Verdict.INCONCLUSIVE, "error"),
        (Verdict.UNSUPPORTED, "skipped"),
    ],
)
def test_junit_tells_apart_how_ours_came_out(world: World, verdict: Verdict, tag: str) -> None:
    world.verdict = verdict
    watch("--junitxml", "night.xml")
    (suite,) = ElementTree.parse("night.xml").getroot()
    (case,) = [c for c in suite if c.get("classname") == "watch.ours"]
    assert [e.tag for e in case] == [tag]


def test_json_has_all_that_the_nights_say(world: World) -> None:
    appeared(world, "0.13.2", "2024-02-12")
    world.answers["0.13.2"] = YES
    watch(*REPLAY, "--json", "replay.json")
    told = json.loads(Path("replay.json").read_text())
    assert told["exit_code"] == 1
    assert [n["night"]["day"] for n in told["nights"]][:2] == ["2024-02-05", "2024-02-12"]
    assert [a["version"] for n in told["nights"] for a in n["asked"]] == ["0.13.1", "0.13.2"]
    (change,) = told["nights"][1]["changes"]
    assert (change["kind"], change["version"]) == ("now affected", "0.13.2")
