"""The table of the scenarios that ran on GPUs, for docs/evidence.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping

from harness.bugs import catalog, result_file
from harness.bugs.api.spec import Lane
from harness.bugs.results import Result
from harness.system.text import count, markdown_table

REASONS: Mapping[str, str] = {
    "flux_checkpoint_kwargs": "its releases cannot be imported beside packages of that machine",
    "mmengine_resume_data": "its releases need libGL, which that machine lacks",
    "length_grouped_resume": "its fixed release cannot be imported beside packages of that machine",
    "cp_per_token_times": "its release cannot be installed for that machine's Python, 3.12",
    "tied_embedding_straddles": "its release cannot be installed for that machine's Python, 3.12",
    "pml_ddp_scale": "its release cannot be installed for that machine's Python, 3.12",
    "torchmetrics_minmax": "its fixed release cannot be imported beside packages of that machine",
    "zero_bubble_shared_weight": "its edit does not fit the torch of that machine, 2.11",
}
"""Why scenarios that use a device have no result from GPUs."""

NUMBERS = {1: "one", 2: "two", 4: "four"}

Kept = Mapping[str, list[Result]]
"""The trials of runs, by the name of a run, or of its scenario."""


def evidence() -> str:
    """How many scenarios ran on GPUs, what disagrees with the CPU, and which did not run."""
    runs = {name: result_file.kept_runs(name) for name in catalog.sound()}
    by_kind = [_newest(runs, shares) for shares in (False, True)]
    trials = [trial for newest in by_kind for kept in newest.values() for trial in kept]
    surprises = [trial for trial in trials if not trial.as_expected]
    scenarios = {trial.scenario for trial in trials}
    verdict = (
        f"{len(scenarios)} scenarios ran on GPUs: {len(trials)} trials, of which "
        f"{len(trials) - len(surprises)} have the outcome that the CPU has."
    )
    parts = [
        verdict,
        *(_surprise(trial) for trial in surprises),
        _both(*by_kind),
        markdown_table(["package", *HEADINGS], list(_rows(*by_kind))),
        *_missing_variants(runs),
        *_without(name for name in catalog.sound() if name not in scenarios),
    ]
    return "\n\n".join(parts)


HEADINGS = ("a GPU for each rank", "ranks share one GPU")


def _newest(
    runs: Mapping[str, Mapping[str, list[Result]]], shares: bool
) -> dict[str, list[Result]]:
    """The newest run of each scenario in which ranks share a GPU, or have one each."""
    newest = {}
    for name, by_label in runs.items():
        for trials in by_label.values():
            if any((t.environment or {}).get("shares_gpu") for t in trials) == shares:
                newest[name] = trials
                break
    return newest


def _both(own: Kept, shared: Kept) -> str:
    """Whether scenarios that ran in both ways show the same."""
    names = [name for name in own if name in shared]
    differing = []
    for name in names:
        outcomes = {trial.variant: trial.outcome for trial in shared[name]}
        if any(outcomes.get(one.variant, one.outcome) is not one.outcome for one in own[name]):
            differing.append(f"`{name}`")
    end = f"Other outcomes: {', '.join(differing)}." if differing else "Each outcome is the same."
    return f"{count(len(names), 'scenario')} ran in both ways.{f' {end}' if names else ''}"


def _rows(own: Kept, shared: Kept) -> Iterator[list[str]]:
    packages = sorted({catalog.subject(name) for name in (*own, *shared)})
    for package in packages:
        cells = []
        for kept in (own, shared):
            groups = defaultdict(list)
            for name, trials in kept.items():
                if catalog.subject(name) == package:
                    groups[_machine(trials[0])].append(f"`{name}`")
            texts = [f"{machine}: {', '.join(names)}" for machine, names in sorted(groups.items())]
            cells.append("; ".join(texts))
        yield [package, *cells]


def _machine(trial: Result) -> str:
    gpus = trial.machine["gpus"]
    return f"{NUMBERS.get(len(gpus), len(gpus))} {gpus[0].removeprefix('NVIDIA ').split()[0]}"


def _surprise(trial: Result) -> str:
    return (
        f"`{trial.scenario}`, variant `{trial.variant}`: {trial.outcome} on {_machine(trial)}, "
        f"{trial.expected} on a CPU: {trial.reason.splitlines()[0]}"
    )


def _missing_variants(runs: Mapping[str, Mapping[str, list[Result]]]) -> Iterator[str]:
    """A sentence about the variants without a result, of scenarios that have some."""
    texts, variants_count = [], 0
    for name, by_label in runs.items():
        done = {trial.variant for kept in by_label.values() for trial in kept}
        missing = [variant for variant in catalog.scenario(name).variants if variant not in done]
        if by_label and missing:
            variants_count += len(missing)
            texts.append(f"`{name}` ({', '.join(missing)})")
    if texts:
        yield (
            f"{count(variants_count, 'variant')} of these scenarios did not run there: "
            f"{', '.join(texts)}"
        )


def _without(names: Iterator[str]) -> Iterator[str]:
    """Sentences about the scenarios without a result from GPUs, by the reason."""
    reasons = defaultdict(list)
    for name in names:
        on_gpus = Lane.GPU in catalog.scenario(name).lanes
        reason = REASONS.get(name, "not run yet") if on_gpus else "nothing in it uses a device"
        reasons[reason].append(f"`{name}`")
    for reason, scenarios in sorted(reasons.items(), key=lambda group: -len(group[1])):
        yield f"{count(len(scenarios), 'scenario')} without a result ({reason}): " + (
            ", ".join(scenarios)
        )
