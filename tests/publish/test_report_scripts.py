"""The report.py of bugs, run on releases that are drawn by lot."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs import catalog, result_file
from harness.bugs.results import Result, Status
from harness.publish import report_scripts
from harness.publish.report_scripts import AGREES, CONTRADICTS, NO_ANSWER, drawn
from harness.system.errors import ExitCode
from tests.made_up import cell_of
from tests.nightly_world import NO, YES, cell
from tests.sandbox import living

Capture = pytest.CaptureFixture[str]


def cells_of(scenario: str, *versions: str, status: Status = NO) -> list[Result]:
    return [cell_of(scenario, {"x": version}, status, "because") for version in versions]


def test_a_result_of_each_bug_is_drawn_by_the_day() -> None:
    cells = [*cells_of("a", *map(str, range(40))), *cells_of("b", *map(str, range(40)))]
    first, second = drawn(cells, "2026-03-05")
    assert [first.scenario, second.scenario] == ["a", "b"]
    assert drawn(reversed(cells), "2026-03-05") == [first, second]
    assert drawn(cells, "2026-03-06") != [first, second]
    assert drawn(cells, "2026-03-05", 1) in ([first], [second])


def test_only_results_that_are_certain_are_drawn() -> None:
    unsure = cells_of("a", *map(str, range(20)), status=Status.INCONCLUSIVE)
    assert drawn(unsure, "2026-03-05") == []
    assert drawn([*unsure, *cells_of("a", "0.1")], "2026-03-05") == cells_of("a", "0.1")


@pytest.mark.parametrize(
    ("script", "status", "answer", "line"),
    [
        ("print('WRONG: lost'); raise SystemExit(3)", YES, AGREES, "WRONG: lost"),
        ("print('WRONG: lost'); raise SystemExit(3)", NO, CONTRADICTS, "WRONG: lost"),
        ("print('right: kept')", NO, AGREES, "right: kept"),
        ("print('right: kept')", YES, CONTRADICTS, "right: kept"),
        ("print('WRONG: lost'); 1 / 0", YES, NO_ANSWER, "ZeroDivisionError: division by zero"),
        ("print('WRONG: lost')", YES, NO_ANSWER, "it printed nothing"),
        ("print('right: kept'); print('the end')", NO, AGREES, "right: kept"),
        ("import absent", NO, NO_ANSWER, "ModuleNotFoundError: No module named 'absent'"),
    ],
)
def test_a_script_agrees_or_contradicts_or_does_not_answer(
    folders: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    status: Status,
    answer: str,
    line: str,
) -> None:
    (catalog.folder("bf16_clip") / "report.py").write_text(script)
    result = replace(cell("0.13.0", status), scenario="bf16_clip")
    monkeypatch.setattr(
        report_scripts,
        "_run_on",
        lambda _: (report_scripts.run("bf16_clip", tmp_path, {}, tmp_path), 2.5),
    )
    (reproduction,) = report_scripts.reproduced([result])
    assert (reproduction.answer, reproduction.line) == (answer, line)
    assert str(reproduction).endswith("(1 line, 2.5 s)")


def test_a_script_that_a_thread_of_gloo_aborts_runs_again(folders: Path, tmp_path: Path) -> None:
    (catalog.folder("bf16_clip") / "report.py").write_text(
        "import pathlib, sys\n"
        "runs = pathlib.Path('runs')\n"
        "runs.write_text((runs.read_text() if runs.exists() else '') + '.')\n"
        "if len(runs.read_text()) < 3:\n"
        f"    sys.exit({report_scripts.ABORTED!r})\n"
        "print('right: kept')\n"
    )
    process = report_scripts.run("bf16_clip", tmp_path, {}, tmp_path)
    assert (process.returncode, process.stdout) == (0, "right: kept\n")
    assert (tmp_path / "runs").read_text() == "..."


def test_the_ranks_of_a_script_that_takes_too_long_end_with_it(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They kept its output open, and so the command waited for them for ever."""
    (catalog.folder("bf16_clip") / "report.py").write_text(
        "import os, pathlib, subprocess, sys, time\n"
        "assert 'WORLD_SIZE' not in os.environ\n"
        "rank = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "pathlib.Path('rank').write_text(str(rank.pid))\n"
        "time.sleep(600)\n"
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    for limit in (2.0, 10.0, 60.0):  # on a busy machine it starts its rank late
        monkeypatch.setattr(report_scripts, "LIMIT", limit)
        with pytest.raises(subprocess.TimeoutExpired):
            report_scripts.run("bf16_clip", tmp_path, {}, tmp_path)
        if (tmp_path / "rank").exists():
            break
    rank = int((tmp_path / "rank").read_text())
    assert not living(lambda process: process.pid == rank)


@pytest.mark.slow
def test_a_script_has_the_shims_and_packages_of_its_releases(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (site / "package.py").write_text("VALUE = 5")
    (catalog.folder("bf16_clip") / "report.py").write_text(
        "import os, sys, package\nprint(package.VALUE, os.environ['SHIMS'], os.getcwd())\n"
    )
    process = report_scripts.run("bf16_clip", site, {"deepspeed": "0.13.0"}, tmp_path)
    value, *names, folder = process.stdout.split()
    assert (value, folder) == ("5", str(tmp_path)), process.stderr
    assert any(name.startswith("deepspeed.") for name in names)
    assert "SHIMS" not in os.environ


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "code", "totals"),
    [
        ((YES, NO), ExitCode.AS_EXPECTED, "2 agrees, 0 contradicts, 0 does not answer"),
        ((NO, NO), ExitCode.NOT_AS_EXPECTED, "1 agrees, 1 contradicts, 0 does not answer"),
        ((YES, Status.INCONCLUSIVE), ExitCode.INCONCLUSIVE, "1 does not answer"),
    ],
)
def test_confirm_reports_counts_the_answers(
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
    lines: tuple[Status, ...],
    code: int,
    totals: str,
) -> None:
    cells = [cell("0.13.0", YES), replace(cell("0.13.1", NO), scenario="bf16_clip")]
    monkeypatch.setattr("harness.cli.confirm._recorded", lambda _: cells)
    monkeypatch.setattr(report_scripts, "drawn", lambda cells, day, most: cells)
    answers = [
        report_scripts.Reproduction(cell, status, "text", 1.4)
        for cell, status in zip(cells, lines, strict=True)
    ]
    monkeypatch.setattr(report_scripts, "reproduced", lambda _: iter(answers))
    assert main(["confirm", "--reports", "lane=cpu"]) == code
    out = " ".join(capsys.readouterr().out.split())
    assert totals in out
    assert "the scripts ran for 3 s" in out


def test_reports_are_not_recorded(capsys: Capture) -> None:
    assert main(["confirm", "--reports", "--record"]) == ExitCode.USER_MISTAKE
    assert "--reports has no --record" in capsys.readouterr().err


def test_each_bug_has_a_result_from_which_one_can_be_drawn() -> None:
    """But a bug of every torch, which has none."""
    lacking = [
        name
        for name in catalog.sound()
        if not drawn(report_scripts.of_scenarios_choice(result_file.statuses(name)), "2026")
    ]
    assert lacking == ["device_math"]


def test_results_with_other_releases_of_another_package_are_not_drawn() -> None:
    """transformers 5.12.1 does not use what accelerate 1.10.1 does wrong."""
    cells = report_scripts.of_scenarios_choice(result_file.statuses("resume_replays_epoch"))
    releases = {cell.pins["accelerate"]: cell.pins["transformers"] for cell in cells}
    assert len(releases) == len(cells)
    assert releases["1.10.1"] != "5.12.1"
