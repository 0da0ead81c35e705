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
from harness.rank.run_folder import RUN_FILE
from harness.run import command_line
from harness.run.results import TrialResult
from harness.run.suite import Done, started
from harness.run.verdict_text import last_lines
from harness.system.files import read_json

pytestmark = pytest.mark.scenario

VARIANTS = [
    (name, variant) for name in catalog.names() for variant in catalog.scenario(name).variants
]
Property = Callable[[str, object], None]
Runs = Mapping[str, Future[tuple[str, Done]]]


@pytest.fixture(scope="session")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runs]:
    """The running run of each selected scenario, by the scenario's name."""
    option = request.config.getoption
    folder = option("--runs") or tmp_path_factory.mktemp("runs")
    options = [f"lane={option('--lane')}", f"runs={folder}", f"jobs={option('--jobs') or 'null'}"]
    configs = [
        command_line.compose([f"scenario={name}", f"variant=[{','.join(variants)}]", *options])
        for name, variants in selected(request.session.items).items()
    ]
    with started(configs) as running:
        yield {config.scenario: run for config, run in zip(configs, running, strict=True)}


def selected(items: list[pytest.Item]) -> dict[str, list[str]]:
    """The variants of each scenario whose tests were selected; all variants if only the test of the
    scenario's verdict was."""
    chosen: dict[str, list[str]] = {}
    for item in items:
        given = item.callspec.params if hasattr(item, "callspec") else {}
        if "scenario" in given:
            chosen.setdefault(given["scenario"], []).extend(
                v for k, v in given.items() if k == "variant"
            )
    return {name: found or list(catalog.scenario(name).variants) for name, found in chosen.items()}


@pytest.mark.parametrize(("scenario", "variant"), VARIANTS)
def test_a_variant_has_the_expected_outcome(
    scenario: str, variant: str, runs: Runs, record_property: Property
) -> None:
    printed, done = runs[scenario].result()
    print(printed)  # pytest shows it where the test fails
    if done.folder is None and done.result.verdict is Verdict.UNSUPPORTED:
        pytest.skip(done.result.reasons[0])
    assert done.folder is not None, done.result.reasons[0]
    (trial,) = (trial for trial in done.result.trials if trial.variant == variant)
    _note(record_property, done, trial)
    if trial.outcome is Outcome.UNSUPPORTED:
        pytest.skip(trial.reason)
    assert trial.as_expected, _report(done, trial)


@pytest.mark.parametrize("scenario", catalog.names())
def test_a_scenario_is_reproduced(scenario: str, runs: Runs, record_property: Property) -> None:
    printed, done = runs[scenario].result()
    print(printed)
    result = done.result
    record_property("verdict", str(result.verdict))
    if result.verdict in (Verdict.UNSUPPORTED, Verdict.UNJUDGED):
        pytest.skip("; ".join(result.reasons) or "needs buggy and fixed in the same session")
    assert result.exit_code == 0, "\n".join([str(result.verdict), *result.reasons])


def _note(record_property: Property, done: Done, trial: TrialResult) -> None:
    assert done.folder is not None
    run = read_json(done.folder / RUN_FILE)
    pins = run["trials"][trial.variant]["pins"]
    record_property("outcome", str(trial.outcome))
    record_property("releases", ", ".join(f"{name} {version}" for name, version in pins.items()))
    record_property("lane", run["lane"])
    record_property("seconds", round(trial.seconds, 2))
    record_property("detection_step", trial.finding.step if trial.finding else None)
    record_property("run", str(done.folder))


def _report(done: Done, trial: TrialResult) -> str:
    """The outcome, its reason, how to run it alone, and the end of the first failing rank's log."""
    assert done.folder is not None
    return "\n".join(
        [
            f"{done.result.scenario} {trial.variant}: {trial.outcome}, expected {trial.expected}",
            trial.reason,
            f"to run it alone: {read_json(done.folder / RUN_FILE)['command']}",
            f"evidence: {done.folder}",
            *last_lines(done.folder, trial),
        ]
    )
