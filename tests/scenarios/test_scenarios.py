"""Every scenario and variant, run for real: ``pytest -m scenario``, on GPUs with ``--lane gpu``.

The selected variants of a scenario are one run. The runs are started together, as in ``run
scenario=all``: in parallel on a machine with several GPUs, otherwise one after another unless
``--jobs`` is given. Each test waits for its run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Outcome, Verdict
from harness.bugs.results import Result
from harness.rank.run_folder import RUN_FILE
from harness.run import command_line
from harness.run.suite import Done, started
from harness.run.verdict_text import last_lines
from harness.system.files import read_json
from tests.overlays import DAYS

pytestmark = pytest.mark.scenario

SCENARIOS = [
    pytest.param(name, marks=pytest.mark.by_day(DAYS, number))
    for number, name in enumerate(catalog.names())
]
VARIANTS = [
    pytest.param(name, variant, marks=pytest.mark.by_day(DAYS, number))
    for number, name in enumerate(catalog.names())
    for variant in catalog.scenario(name).variants
]
Property = Callable[[str, object], None]
Runs = Mapping[str, Future[tuple[str, Done]]]


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """The started run of each selected scenario, by the scenario's name."""
    option = request.config.getoption
    folder = option("--runs") or tmp_path_factory.mktemp("runs")
    options = [
        f"lane={option('--lane')}",
        f"runs={folder}",
        f"jobs={option('--jobs') or 'null'}",
        f"launch.sharing={option('--sharing')}",
    ]
    configs = [
        command_line.compose([f"scenario={name}", f"variant=[{','.join(variants)}]", *options])
        for name, variants in selected(request.session.items).items()
    ]
    with started(configs) as running:
        yield {config.scenario: run for config, run in zip(configs, running, strict=True)}


def selected(items: list[pytest.Item]) -> dict[str, list[str]]:
    """The variants of each scenario whose tests were selected; all variants if only the test of the
    verdict was selected."""
    chosen: dict[str, list[str]] = {}
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if "scenario" in params:
            chosen.setdefault(params["scenario"], []).extend(
                v for k, v in params.items() if k == "variant"
            )
    return {name: found or list(catalog.scenario(name).variants) for name, found in chosen.items()}


@pytest.mark.parametrize(("scenario", "variant"), VARIANTS)
def test_a_variant_has_the_expected_outcome(
    scenario: str, variant: str, runs: Runs, record_property: Property
) -> None:
    printed, run = runs[scenario].result()
    print(printed)  # pytest shows it where the test fails
    if run.folder is None and run.result.verdict is Verdict.UNSUPPORTED:
        pytest.skip(run.result.reasons[0])
    assert run.folder is not None, run.result.reasons[0]
    (trial,) = (trial for trial in run.result.trials if trial.variant == variant)
    _note(record_property, run, trial)
    if trial.outcome is Outcome.UNSUPPORTED:
        pytest.skip(trial.reason)
    assert trial.as_expected, _report(run, trial)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_reproduced(scenario: str, runs: Runs, record_property: Property) -> None:
    printed, run = runs[scenario].result()
    print(printed)
    result = run.result
    record_property("verdict", str(result.verdict))
    if result.verdict in (Verdict.UNSUPPORTED, Verdict.UNJUDGED):
        pytest.skip("; ".join(result.reasons) or "needs buggy and fixed in the same session")
    assert result.exit_code == 0, "\n".join([str(result.verdict), *result.reasons])


def _note(record_property: Property, run: Done, trial: Result) -> None:
    assert run.folder is not None
    facts = read_json(run.folder / RUN_FILE)
    pins = facts["trials"][trial.variant]["pins"]
    record_property("outcome", str(trial.outcome))
    record_property("releases", ", ".join(f"{name} {version}" for name, version in pins.items()))
    record_property("lane", facts["lane"])
    record_property("seconds", round(trial.seconds, 2))
    record_property("detection_step", trial.finding.step if trial.finding else None)
    record_property("run", str(run.folder))


def _report(run: Done, trial: Result) -> str:
    """The outcome, its reason, how to run it alone, and the end of the first failing rank's log."""
    assert run.folder is not None
    return "\n".join(
        [
            f"{run.result.scenario} {trial.variant}: {trial.outcome}, expected {trial.expected}",
            trial.reason,
            f"to run it alone: {read_json(run.folder / RUN_FILE)['command']}",
            f"evidence: {run.folder}",
            *last_lines(run.folder, trial),
        ]
    )
