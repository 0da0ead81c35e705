"""What a scenario's folder must contain: every scenario has it, and what is missing is named."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs import catalog, result_file
from harness.bugs.api.spec import Lane, Outcome, Scenario, Variant, Verdict
from harness.bugs.results import RunResult, Status
from harness.cli import _demands as demands
from harness.cli import admit, bisect, matrix
from harness.cli._demands import DEMANDS, Missing, checked
from harness.system.files import ROOT
from harness.system.terminal import terminal

NAME = "sampler_shards"


@pytest.mark.parametrize("name", catalog.names())
def test_a_scenario_meets_every_demand(name: str) -> None:
    """A bug for GPUs that no GPU has run yet has no results."""
    waits = catalog.scenario(name).lanes == (Lane.GPU,) and not result_file.read(name)
    later = {demands.text(demands.recorded_run), demands.text(demands.statuses)} if waits else set()
    unmet = {what: why for what, met, why in checked(name) if not met}
    assert unmet.keys() == later, unmet


def test_contributing_lists_the_demands() -> None:
    text = " ".join((ROOT / "CONTRIBUTING.md").read_text().split())
    for demand in DEMANDS:
        assert demands.text(demand) in text


BUGGY = Variant("", Outcome.SYMPTOM)
FIXED = Variant("", Outcome.CLEAN)


@pytest.mark.parametrize(
    ("demand", "changes", "missing"),
    [
        (demands.story, {"remedy": "UNFINISHED: what to do"}, "remedy is not written yet"),
        (demands.story, {"report": ("",)}, "report is not written yet"),
        (demands.story, {"title": "x" * 200}, "the title has 200 characters"),
        (demands.harm, {"harm": "UNFINISHED"}, "choose one of HARMS"),
        (demands.variants, {"variants": {"buggy": BUGGY}}, "fixed must expect clean"),
        (demands.variants, {"variants": {"buggy": BUGGY, "fixed": FIXED}}, "there is no control"),
        (demands.files, {"files": ()}, "names a file"),
        (
            demands.lock_files,
            {"pins": {"accelerate": "0.29.2"}},
            "accelerate-0.29.2.txt is missing",
        ),
    ],
)
def test_what_the_metadata_lacks_is_named(
    demand: demands.Demand, changes: Mapping[str, Any], missing: str
) -> None:
    demand(NAME, catalog.scenario(NAME))
    with pytest.raises(Missing, match=missing):
        demand(NAME, replace(catalog.scenario(NAME), **changes))


def test_a_bug_needs_a_result_for_the_release_of_buggy(record: Callable[..., None]) -> None:
    name, scenario = "rope_zero_init", catalog.scenario("rope_zero_init")
    record(**{"4_34_0": Status.AFFECTED, "4_36_2": Status.INCONCLUSIVE})
    with pytest.raises(Missing, match=r"scenario=rope_zero_init pins\.transformers=4\.36\.2 --rec"):
        demands.statuses(name, scenario)
    record(**{"4_36_2": Status.AFFECTED})
    assert demands.statuses(name, scenario) == "2 releases"


@pytest.mark.parametrize("release", ["4_36_2", "4_34_0"])
def test_fix_tests_the_release_of_buggy_if_the_search_passed_over_it(
    release: str, record: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def search(words: Sequence[str]) -> None:
        calls.append(words[-1])
        record(**{release: Status.AFFECTED})

    monkeypatch.setattr(bisect, "main", search)
    monkeypatch.setattr(matrix, "main", lambda words: calls.append(words[-1]))
    admit.SUPPLIES[demands.statuses]("rope_zero_init")
    passed_over = ["pins.transformers=4.36.2"] if release == "4_34_0" else []
    assert calls == ["pins.transformers=all", *passed_over]


@pytest.mark.parametrize(
    ("demand", "missing"),
    [
        (demands.lock_files, "is missing: python -m harness lock bf16_clip"),
        (demands.statuses, "no release was tested"),
        (demands.recorded_run, "no recorded run"),
        (demands.mutations, "no mutations.py"),
        (demands.page, "README.md is out of date"),
    ],
)
def test_what_the_folder_lacks_is_named(
    demand: demands.Demand, missing: str, folders: Path
) -> None:
    with pytest.raises(Missing, match=missing):
        demand("bf16_clip", catalog.scenario("bf16_clip"))


def test_admit_runs_nothing_before_the_demands_are_met(
    folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["admit", f"scenario={NAME}"]) == 1
    out = capsys.readouterr().out
    assert "no recorded run: python -m tests.record RUN" in out
    assert f"{NAME}: not admitted" in out


def test_fix_supplies_what_it_can_until_only_a_person_can_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking, supplied = {"lock", "report", "page"}, []

    def demand(thing: str) -> demands.Demand:
        def check(name: str, scenario: Scenario) -> str:
            if thing in lacking:
                raise Missing(thing)
            return ""

        check.__name__ = thing
        return check

    def supply(name: str) -> None:
        missing_thing = next(thing for thing in ("lock", "page") if thing in lacking)
        supplied.append(missing_thing)
        lacking.remove(missing_thing)

    story, lock, report, page = map(demand, ("story", "lock", "report", "page"))
    monkeypatch.setattr(demands, "DEMANDS", (story, lock, report, page))
    monkeypatch.setattr(admit, "SUPPLIES", {lock: supply, page: supply})
    admit.fix(NAME, terminal())
    assert supplied == ["lock"]
    lacking.remove("report")
    admit.fix(NAME, terminal())
    assert supplied == ["lock", "page"]


@pytest.mark.parametrize("verdict", [Verdict.REPRODUCED, Verdict.NOT_REPRODUCED])
def test_fix_keeps_a_run_only_if_it_reproduces_the_bug(
    verdict: Verdict, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, ...]] = []
    result = RunResult(NAME, verdict, (), ())
    monkeypatch.setattr(admit, "_runs", lambda *_: [(result, Path("runs/1"))])
    monkeypatch.setattr(admit, "_call", lambda *words: calls.append(words))
    admit.SUPPLIES[demands.recorded_run](NAME)
    recorded = [("tests.record", "runs/1")]
    assert calls == (recorded if verdict is Verdict.REPRODUCED else [])


def test_a_bug_needs_a_short_script_and_an_unknown_one_a_text(folders: Path) -> None:
    known_bug = catalog.scenario(NAME)
    unknown_bug = replace(known_bug, known_upstream=False)
    with pytest.raises(Missing, match=r"there is no report\.py"):
        demands.report(NAME, known_bug)
    script = catalog.folder(NAME) / "report.py"
    script.write_text("print()\n" * 40)
    assert demands.report(NAME, known_bug) == "40 lines"
    with pytest.raises(Missing, match=r"there is no report\.md"):
        demands.report(NAME, unknown_bug)
    script.with_name("report.md").touch()
    script.write_text("print()\n" * 41)
    with pytest.raises(Missing, match="has 41 lines, more than 40"):
        demands.report(NAME, unknown_bug)
