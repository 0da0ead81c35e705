"""Every scenario and variant, run for real: ``pytest -m scenario``, ``--lane gpu`` to insist."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness import catalog, config, grade
from harness.records import RUN_FILE, read_json
from harness.report import last_lines
from harness.run import run
from harness.spec import Outcome, RunResult, TrialResult

pytestmark = pytest.mark.scenario

# Under `-n 4 --dist loadgroup` a scenario's tests stay in one process, and the scenarios of a box
# with several GPUs run side by side.
SCENARIOS = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in catalog.names()]
VARIANTS = [
    pytest.param(name, variant, marks=pytest.mark.xdist_group(name))
    for name in catalog.names()
    for variant in catalog.scenario(name).variants
]
Property = Callable[[str, object], None]


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    kept: Path | None = request.config.getoption("--runs")
    return kept or tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def folders() -> dict[tuple[str, str], Path]:
    """The run folder of each variant that has been run in this session."""
    return {}


@pytest.mark.parametrize(("scenario", "variant"), VARIANTS)
def test_a_variant_comes_out_as_its_report_says(
    scenario: str,
    variant: str,
    runs: Path,
    folders: dict[tuple[str, str], Path],
    record_property: Property,
    request: pytest.FixtureRequest,
) -> None:
    lane = request.config.getoption("--lane")
    arguments = [f"scenario={scenario}", f"variant={variant}", f"launch={lane}", f"runs={runs}"]
    result, folder = run(config.compose(arguments))
    folders[scenario, variant] = folder
    _note(record_property, result, folder)
    trial = result.trials[0]
    if trial.outcome is Outcome.UNSUPPORTED:
        pytest.skip(trial.reason)
    assert trial.as_expected, _told(result, trial, folder)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_reproduced(
    scenario: str, folders: dict[tuple[str, str], Path], record_property: Property
) -> None:
    variants = catalog.scenario(scenario).variants
    missing = [v for v in variants if (scenario, v) not in folders]
    if missing:
        pytest.skip(f"needs all variants in the same session; not run: {', '.join(missing)}")
    trials = {v: (folders[scenario, v] / v, _trial(folders[scenario, v], v)) for v in variants}
    result = grade.grade_together(scenario, trials)
    record_property("verdict", str(result.verdict))
    if all(trial.outcome is Outcome.UNSUPPORTED for trial in result.trials):
        pytest.skip(result.trials[0].reason)
    assert result.exit_code == 0, "\n".join([str(result.verdict), *result.reasons])


def _trial(folder: Path, variant: str) -> dict[str, object]:
    trial: dict[str, object] = read_json(folder / RUN_FILE)["trials"][variant]
    return trial


def _note(record_property: Property, result: RunResult, folder: Path) -> None:
    told = read_json(folder / RUN_FILE)
    trial = result.trials[0]
    record_property("outcome", str(trial.outcome))
    record_property("verdict", str(result.verdict))
    record_property("releases", ", ".join(f"{n} {v}" for n, v in _pins(told, trial).items()))
    record_property("lane", told["lane"])
    record_property("detection_step", trial.finding.step if trial.finding else None)
    record_property("run", str(folder))


def _pins(
    told: dict[str, dict[str, dict[str, dict[str, str]]]], trial: TrialResult
) -> dict[str, str]:
    return told["trials"][trial.variant]["pins"]


def _told(result: RunResult, trial: TrialResult, folder: Path) -> str:
    """What, why, how to run it alone, and the end of the first failing rank's log."""
    return "\n".join(
        [
            f"{result.scenario} {trial.variant}: {trial.outcome}, expected {trial.expected}",
            trial.reason,
            f"to run it alone: {read_json(folder / RUN_FILE)['command']}",
            f"evidence: {folder}",
            *last_lines(folder, trial),
        ]
    )
