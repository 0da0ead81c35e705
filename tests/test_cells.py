"""Cells, the matrix, the recorded ranges and check, on runs that are made up."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import pytest
from rich.console import Console

from harness import affected, catalog, cells, check, config, machine, matrix, pins
from harness.__main__ import main
from harness.cells import Answer, Cell
from harness.config import RunConfig
from harness.records import EXIT_FILE, RUN_FILE, write_json
from harness.spec import (
    RELEASED,
    Finding,
    Inconclusive,
    Lane,
    Outcome,
    RunResult,
    TrialResult,
    Unsupported,
    UserError,
    Verdict,
)

Capture = pytest.CaptureFixture[str]
KNOWN = ["4.38.2", "4.38.0", "4.37.2", "4.37.0", "4.36.2", "0.19.8", "0.13.3"]
FIXED_IN = "4.38"


class Upstream:
    """Stands in for ``run``: releases before 4.38 have the bug; notes which ones were asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.asked: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        self.error: Exception | None = None
        self.timed_out = False

    def __call__(
        self, asked: RunConfig, console: Console, stop: threading.Event | None = None
    ) -> tuple[RunResult, Path]:
        told = {**catalog.scenario(asked.scenario).pins, **asked.pins}
        release = told["transformers"]
        self.asked.append(release)
        if self.error:
            raise self.error
        symptom = Outcome.SYMPTOM if release < FIXED_IN else Outcome.CLEAN
        outcome = self.outcomes.get(release, symptom)
        folder = self.folder / f"{uuid.uuid4().hex}-{release}"
        (folder / RELEASED).mkdir(parents=True)
        facts = {"python": "3.11.7", "torch": "2.13.0"}
        trials = {RELEASED: {"pins": told}}
        write_json(folder / RUN_FILE, {"lane": Lane.CPU, "trials": trials, "machine": facts})
        ended = {"code": 0, "seconds": 1.0, "timed_out": self.timed_out, "survivors": []}
        write_json(folder / RELEASED / EXIT_FILE, ended)
        finding = Finding("wrong", step=0) if outcome is Outcome.SYMPTOM else None
        trial = TrialResult(RELEASED, outcome, None, "because\nof this", 1.5, finding)
        return RunResult(asked.scenario, Verdict.UNJUDGED, (), (trial,)), folder


@pytest.fixture
def upstream(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Upstream:
    made = Upstream(tmp_path / "made_up")
    monkeypatch.setattr(cells, "run", made)
    monkeypatch.setattr(pins, "versions", lambda *_, **__: KNOWN)
    monkeypatch.setattr(pins, "_is_yanked", lambda *_: False)
    monkeypatch.setattr(pins, "released", lambda *_: "2024-03-01")
    monkeypatch.setattr(cells, "_make_overlay", lambda *_: None)
    monkeypatch.setattr(machine, "gpus", lambda: ())
    return made


SWEEP = ("matrix", "scenario=rope_zero_init", "pins.transformers=4.36:4.38")


def test_each_release_gets_an_answer_of_its_own(upstream: Upstream, capsys: Capture) -> None:
    assert main([*SWEEP]) == 0
    out = capsys.readouterr().out
    assert sorted(upstream.asked) == ["4.36.2", "4.37.0", "4.37.2", "4.38.0", "4.38.2"]
    table = [line.split() for line in out.rpartition("transformers  answer")[2].splitlines()]
    answers = {row[0]: " ".join(row[1:3]) for row in table if row and row[0] in KNOWN}
    assert answers["4.37.2"] == "affected 0"
    assert answers["4.38.0"].startswith("not affected")
    assert "5 cells: 3 affected, 2 not affected" in out


def test_what_was_answered_is_not_asked_again(upstream: Upstream, capsys: Capture) -> None:
    assert main([*SWEEP]) == 0
    upstream.asked.clear()
    assert main([*SWEEP]) == 0
    assert upstream.asked == []
    assert "(5 stored)" in capsys.readouterr().out
    assert main([*SWEEP[:2], "--again", *SWEEP[2:]]) == 0  # options may stand anywhere
    assert len(upstream.asked) == 5


@pytest.mark.parametrize(
    "change",
    ["seed=1", "scenario.tokens=400", "launch.threads=2", "pins.deepspeed=0.19.8", "code", "torch"],
)
def test_another_question_is_not_answered_from_the_store(
    upstream: Upstream, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["matrix", "scenario=rope_zero_init", "pins.transformers=4.36.2"]
    assert main(words) == 0
    if change == "code":
        monkeypatch.setattr(cells, "code", lambda scenario: "another")
    elif change == "torch":
        facts = {**machine.facts(), "torch": "another"}
        monkeypatch.setattr(machine, "facts", lambda: facts)
    else:
        words.append(change)
    assert main(words) == 0
    assert upstream.asked == ["4.36.2", "4.36.2"]


def test_the_digest_of_the_code_sees_the_scenario_and_what_it_imports() -> None:
    files = {f.name for f in catalog.sources("scenarios.rope_zero_init", "harness.grade")}
    assert {"rope_zero_init.py", "rope.py", "buffers.py", "grade.py", "records.py"} <= files
    assert "bf16_clip.py" not in files
    assert cells.code("rope_zero_init") != cells.code("bf16_clip")


def test_a_cell_that_is_not_whole_is_asked_again(upstream: Upstream, cache: Path) -> None:
    assert main([*SWEEP]) == 0
    for file in (cache / "cells").iterdir():
        file.write_text(file.read_text()[:40])
    upstream.asked.clear()
    assert main([*SWEEP]) == 0
    assert len(upstream.asked) == 5


def test_a_sweep_that_was_broken_off_goes_on_where_it_stopped(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = upstream.__call__

    def killed(asked: RunConfig, *rest: object) -> tuple[RunResult, Path]:
        if len(upstream.asked) == 3:
            raise KeyboardInterrupt
        return whole(asked, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(cells, "run", killed)
    assert main([*SWEEP, "jobs=1"]) == 130
    monkeypatch.setattr(cells, "run", upstream)
    first = list(upstream.asked)
    assert main([*SWEEP, "jobs=1"]) == 0
    assert len(first) == 3
    assert not set(first) & set(upstream.asked[3:])


@pytest.mark.parametrize(
    ("timed_out", "stored"), [(False, True), (True, False)], ids=["a crash", "a deadline"]
)
def test_an_inconclusive_cell_is_kept_unless_time_ran_out(
    upstream: Upstream, capsys: Capture, timed_out: bool, stored: bool
) -> None:
    upstream.outcomes, upstream.timed_out = {"4.37.0": Outcome.INCONCLUSIVE}, timed_out
    assert main([*SWEEP]) == 3
    assert "transformers 4.37.0: inconclusive" in capsys.readouterr().out
    upstream.asked.clear()
    assert main([*SWEEP]) == 3
    assert upstream.asked == ([] if stored else ["4.37.0"])


@pytest.mark.parametrize(
    ("error", "answer", "code"),
    [
        (Unsupported("no wheels for this Python"), Answer.UNSUPPORTED, 0),
        (Inconclusive("no network"), Answer.INCONCLUSIVE, 3),
    ],
)
def test_what_cannot_be_run_is_told_with_its_reason_and_not_kept(
    upstream: Upstream, tmp_path: Path, error: Exception, answer: Answer, code: int
) -> None:
    upstream.error = error
    assert main([*SWEEP, "--json", str(tmp_path / "cells.json")]) == code
    told = json.loads((tmp_path / "cells.json").read_text())
    assert {cell["answer"] for cell in told} == {answer}
    assert told[0]["reason"] == str(error)
    upstream.error = None
    assert main([*SWEEP]) == 0
    assert len(upstream.asked) == 10


@pytest.mark.parametrize(
    ("cpus", "gpus", "words", "at_once"),
    [
        (2, 0, (), 1),
        (8, 0, (), 4),
        (8, 0, ("launch.threads=4",), 1),
        (64, 8, (), 4),
        (64, 3, (), 1),
        (64, 8, ("launch=cpu",), 32),
    ],
)
def test_as_many_cells_run_at_once_as_cores_or_gpus_have_room_for(
    monkeypatch: pytest.MonkeyPatch, cpus: int, gpus: int, words: tuple[str, ...], at_once: int
) -> None:
    there = tuple(machine.Gpu(str(n), f"U{n}", "H") for n in range(gpus))
    monkeypatch.setattr(machine, "gpus", lambda: there)
    monkeypatch.setattr(machine, "facts", lambda: {"cpus": cpus, "gpus": ["H"] * gpus})
    assert cells.room(config.compose(["scenario=rope_zero_init", *words])) == at_once


def test_two_packages_make_a_grid_and_the_files_hold_every_cell(
    upstream: Upstream, tmp_path: Path, capsys: Capture
) -> None:
    files = ["--csv", str(tmp_path / "cells.csv"), "--json", str(tmp_path / "cells.json")]
    assert main([*SWEEP[:2], "pins.transformers=4.37.2,4.38.2", "pins.deepspeed=0.13.3,0.19.8",
                 *files]) == 0  # fmt: skip
    out = capsys.readouterr().out
    assert r"transformers \ deepspeed" in out
    rows = [line.split() for line in out.partition(r"\ deepspeed")[2].splitlines()[1:3]]
    assert rows == [["4.37.2", "affected", "affected"],
                    ["4.38.2", "not", "affected", "not", "affected"]]  # fmt: skip
    lines = (tmp_path / "cells.csv").read_text().splitlines()
    assert lines[0].startswith("transformers,deepspeed,answer,step,seconds,lane,python,torch,date")
    assert lines[1].startswith("4.37.2,0.13.3,affected,0,1.5,cpu,3.11.7,2.13.0,")
    assert len(json.loads((tmp_path / "cells.json").read_text())) == 4


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["matrix"], "KEY=VALUE"),
        (["matrix", "pins.transformers=4.36:"], "matrix asks about one scenario: scenario=NAME."),
        (["matrix", "scenario=all", "pins.transformers=4.36:"], "asks about one scenario"),
        (["matrix", "scenario=rope_zero", "pins.transformers=4.36:"], "mean rope_zero_init?"),
        (["matrix", "scenario=rope_zero_init"], "such as pins.transformers=minor"),
        (["matrix", "scenario=device_math"], "this scenario pins none"),
        ([*SWEEP[:2], "pins.apex=1:2"], "no pin of this scenario 'apex'. Choices: transformers"),
        ([*SWEEP[:2], "pins.transformers=9:"], "no release of transformers lies in this range"),
        ([*SWEEP[:2], "pins.transformers=4.36.9"], "no release transformers==4.36.9"),
        ([*SWEEP, "variant=fixed"], "matrix asks releases as published: leave variant=fixed out"),
        ([*SWEEP, "scenario.tokens=3"], "scenario.tokens must be more than 257"),
        (["bisect", *SWEEP[1:2], "pins.transformers=4.36.2"], "needs one package with a range"),
        (["bisect", *SWEEP[1:], "--apart", "0"], "--apart must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_and_asks_nothing(
    upstream: Upstream, capsys: Capture, words: list[str], told: str
) -> None:
    assert main(words) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1
    assert upstream.asked == []


def test_bisect_names_the_neighbours_between_which_it_flips(
    upstream: Upstream, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"4.{minor}.{patch}" for minor in range(36, 40) for patch in range(5)]
    monkeypatch.setattr(pins, "versions", lambda *_, **__: many)
    assert main(["bisect", "scenario=rope_zero_init", "pins.transformers=:"]) == 0
    out = capsys.readouterr().out
    assert "flips from affected to not affected between 4.37.4 and 4.38.0 (neighbours" in out
    assert "transformers 4.36.0 to 4.37.4: affected" in out
    assert len(upstream.asked) < 10 < len(many)


def test_bisect_says_what_stands_between_where_it_cannot_know(
    upstream: Upstream, capsys: Capture
) -> None:
    upstream.outcomes = {"4.37.2": Outcome.INCONCLUSIVE}
    assert main(["bisect", *SWEEP[1:], "--apart", "1"]) == 0
    assert "(somewhere between, for 4.37.2 gave no answer)" in capsys.readouterr().out


# What is recorded


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    monkeypatch.setattr(affected, "FILE", tmp_path / "affected.json")
    monkeypatch.setattr(affected, "PAGES", tmp_path)

    def add(**answers: Answer) -> None:
        affected.record(cell(release.replace("_", "."), a) for release, a in answers.items())

    return add


def cell(release: str, answer: Answer) -> Cell:
    told = {"transformers": release.removeprefix("v"), "deepspeed": "0.13.3"}
    return Cell("rope_zero_init", told, answer, f"because of {release}\nand", "cpu", "3.11.7",
                "2.13.0", "2026-11-21")  # fmt: skip


Recording = Callable[..., None]
YES, NO, UNCLEAR = Answer.AFFECTED, Answer.NOT_AFFECTED, Answer.INCONCLUSIVE


def test_a_release_between_two_that_agree_is_known(record: Recording) -> None:
    record(v4_36_2=YES, v4_38_2=NO, v4_40_1=NO, v4_39_0=UNCLEAR)

    def known(version: str) -> Answer | None:
        found = affected.known("rope_zero_init", "transformers", version)
        return found and found[0]

    assert known("4.36.2") is YES
    assert known("4.38.5") is NO
    assert known("4.39.0") is NO
    assert known("4.37.0") is None, "its neighbours differ"
    assert known("4.41.0") is None, "newer than all that were asked"
    assert known("4.35.0") is None, "older than all that were asked"
    assert affected.known("bf16_clip", "deepspeed", "0.19.8") is None


def test_a_certain_answer_is_replaced_by_a_certain_one_only(record: Recording) -> None:
    record(v4_36_2=YES)
    record(v4_36_2=UNCLEAR)
    assert [f["answer"] for f in affected.load()["rope_zero_init"]] == ["affected"]
    record(v4_36_2=NO)
    assert [f["answer"] for f in affected.load()["rope_zero_init"]] == ["not affected"]


def test_a_page_shows_what_is_recorded_alike_in_one_row(record: Recording, tmp_path: Path) -> None:
    page = tmp_path / "rope_zero_init.md"
    page.write_text("# A page\n\ntext\n")
    record(v4_36_2=YES, v4_4_0=YES, v4_38_2=NO, v4_39_0=UNCLEAR)
    text = page.read_text()
    assert text.startswith("# A page\n\ntext\n\n<!-- affected: generated -->\n")
    assert "| 4.4.0, 4.36.2 | **affected** | deepspeed 0.13.3 | cpu |" in text
    assert "| because of v4.39.0 |" in text
    page.write_text(text + "\nafter\n")
    record(v4_38_2=YES)
    again = page.read_text()
    assert "| 4.4.0, 4.36.2, 4.38.2 | **affected**" in again
    assert again.endswith("<!-- end of affected -->\n\nafter\n")
    assert again.count("## Affected releases") == 1


def test_the_pages_show_what_the_file_holds() -> None:
    for name, facts in affected.load().items():
        text = (affected.PAGES / f"{name}.md").read_text()
        assert affected.section(name, facts) in text, f"{name}: python -m harness matrix --record"


# Checking an environment


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    installed: dict[str, str] = {}

    def version(name: str) -> str:
        if name in installed:
            return installed[name]
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    return installed


def asked(scenario: str) -> RunConfig:
    return config.compose([f"scenario={scenario}", f"variant={RELEASED}"])


def test_what_is_not_installed_cannot_be_affected(environment: dict[str, str]) -> None:
    found = check.checked(asked("bf16_clip"))
    assert (found.answer, found.why) == ("not affected", "deepspeed is not installed")


def test_what_cannot_be_run_is_answered_from_the_record(
    environment: dict[str, str], record: Recording
) -> None:
    environment["transformers"] = "4.37.0"
    found = check.checked(asked("rope_zero_init"))
    assert found.answer == "unknown"
    assert "deepspeed is not installed, which the run needs" in found.why
    record(v4_36_2=YES, v4_37_2=YES)
    found = check.checked(asked("rope_zero_init"))
    assert (found.answer, found.how) == ("affected", "recorded")
    assert "as 4.36.2 and 4.37.2 were; not run here" in found.why


def test_a_release_that_the_scenario_is_not_about_is_not_affected(
    environment: dict[str, str],
) -> None:
    environment.update(transformers="4.36.2", deepspeed="0.13.3")
    found = check.checked(asked("rope_zero_init_v5"))
    assert found.answer == "not affected"
    assert "this is about transformers>=5" in found.why


def test_requirements_are_asked_on_overlays(upstream: Upstream) -> None:
    found = check.checked(asked("rope_zero_init"), {"transformers": "4.36.2"})
    assert (found.answer, found.how) == ("affected", "ran")
    found = check.checked(asked("rope_zero_init"), {"transformers": "4.38.2"})
    assert found.answer == "not affected"
    assert upstream.asked == ["4.36.2", "4.38.2"]
    found = check.checked(asked("bf16_clip"), {"transformers": "4.38.2"})
    assert found.why == "deepspeed is not required"


def test_the_exit_code_says_affected_and_names_trigger_and_remedy(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Capture
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("transformers\n")
    words = ["check", "scenario=rope_zero_init", "-r", str(file)]
    monkeypatch.setattr(pins, "required", lambda _: {"transformers": "4.36.2"})
    assert main(words) == 1
    out = capsys.readouterr().out
    told = catalog.scenario("rope_zero_init")
    assert f"only with {told.trigger}" in out
    assert f"remedy: {told.remedy}" in out
    monkeypatch.setattr(pins, "required", lambda _: {"transformers": "4.38.2"})
    assert main(words) == 0
    upstream.error = Inconclusive("no network")
    monkeypatch.setattr(pins, "required", lambda _: {"transformers": "4.37.2"})
    monkeypatch.setattr(affected, "load", dict)
    assert main(words) == 0
    assert main([*words, "--strict"]) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["-r", "nowhere.txt"], "no requirements file nowhere.txt"),
        (["pins.deepspeed=0.1"], "leave pins.deepspeed=0.1 out"),
        (["scenario=rope_zero"], "did you mean rope_zero_init?"),
    ],
)
def test_a_mistake_in_checking_is_one_line(words: list[str], told: str, capsys: Capture) -> None:
    assert main(["check", *words]) == 2
    assert told in capsys.readouterr().err


def test_requirements_without_any_upstream_are_a_mistake(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("numpy\n")
    monkeypatch.setattr(pins, "required", lambda _: {"numpy": "2.0"})
    with pytest.raises(UserError, match="names none of deepspeed, megatron-core, transformers"):
        check.check(["scenario=rope_zero_init"], file)


@pytest.mark.parametrize(("asked_for", "said"), [("2.5.1", True), (None, False)])
def test_another_torch_than_the_one_that_runs_is_said(
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Capture,
    asked_for: str | None,
    said: bool,
) -> None:
    file = tmp_path / "requirements.txt"
    file.touch()
    here = metadata.version("torch").partition("+")[0]
    wanted = {"transformers": "4.38.2", "torch": asked_for or here}
    monkeypatch.setattr(pins, "required", lambda _: wanted)
    assert check.check(["scenario=rope_zero_init"], file) == 0
    assert ("means torch 2.5.1; this runs on torch" in capsys.readouterr().out) is said


def test_the_clock_reckons_with_what_was_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    clock, ran = matrix.Clock(10), cell("4.36.2", YES)
    clock.tick(replace(ran, stored=True))
    assert clock.left() == "[1/10]"
    now[0] = 20.0
    clock.tick(ran)
    assert clock.left() == "[2/10, 3 min left]"
