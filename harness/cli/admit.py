"""test whether a scenario may join the catalogue

    python -m harness admit scenario=bf16_clip
    python -m harness admit scenario=bf16_clip --fix    # first writes what a command can write

First its folder must meet the demands of CONTRIBUTING.md. Then it is run: it must give the same
result three times and with another seed, its controls must be clean, and no detector may fire where
nothing is wrong. A scenario whose results differ is reported as flaky; nothing is tried again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console

from harness.bugs import catalog, pins, remedies, result_file
from harness.bugs.api.spec import BUGGY, FIXED, UNDECIDED, Lane, Outcome, Scenario, Verdict
from harness.bugs.results import Result, RunResult
from harness.cli import Arguments, bisect, lock, pages
from harness.rank import run_folder
from harness.rank.run_folder import records_of
from harness.releases import locks, resolution
from harness.releases.releases import ALL
from harness.run import command_line
from harness.run.grade import grade, grade_trial, run_of
from harness.run.run import run
from harness.run.run_config import SLURM, RunConfig
from harness.run.server_pool import Pool
from harness.system.errors import ExitCode, HarnessError, Inconclusive, UserError
from harness.system.files import ROOT
from harness.system.terminal import table, terminal
from harness.system.text import count

LONGEST_TITLE = 110
"""Characters of a title."""
LONGEST_SCRIPT = 40
"""Lines of a script for maintainers."""
UNFINISHED = "UNFINISHED"
"""What ``new`` writes into each text that somebody has to write."""


class Missing(Exception):
    """A demand that a scenario does not meet; the message says what is missing."""


Demand = Callable[[str, Scenario], str]
"""Gets a scenario's name and metadata; returns what it found, or raises Missing."""


def story(name: str, scenario: Scenario) -> str:
    """The docstring tells the story, and its first line is the title"""
    texts = {
        "the docstring": catalog.story(name),
        "fix": scenario.fix,
        "symptom": scenario.symptom,
        "trigger": scenario.trigger,
        "remedy": scenario.remedy or remedies.of(name),
        "report": "" if not all(scenario.report) else " ".join(scenario.report),
    }
    for field, text in texts.items():
        if not text or UNFINISHED in text:
            raise Missing(f"{field} is not written yet")
    if len(scenario.title) > LONGEST_TITLE:
        raise Missing(f"the title has {len(scenario.title)} characters, more than {LONGEST_TITLE}")
    if len(catalog.story(name).splitlines()) < 3:
        raise Missing("the docstring has only a title")
    return scenario.title


def harm(name: str, scenario: Scenario) -> str:
    """``harm`` says what the bug does to a run, and ``visibility`` how a user can notice it"""
    for field, value in (("harm", scenario.harm), ("visibility", scenario.visibility)):
        if value == UNDECIDED:
            choices = "HARMS" if field == "harm" else "VISIBILITIES"
            raise Missing(f"{field} is not written yet: choose one of {choices} in api/spec.py")
    return f"{scenario.harm}, {scenario.visibility}"


def variants(name: str, scenario: Scenario) -> str:
    """``buggy`` shows the symptom, ``fixed`` is clean, and so is a control without the trigger"""
    for variant, expected in ((BUGGY, Outcome.SYMPTOM), (FIXED, Outcome.CLEAN)):
        if variant not in scenario.variants or scenario.variants[variant].expect is not expected:
            raise Missing(f"{variant} must expect {expected}")
    clean = [name for name, v in scenario.variants.items() if v.expect is Outcome.CLEAN]
    if clean == [FIXED]:
        raise Missing("there is no control: a clean variant with the bug, but without its trigger")
    for defect in scenario.variants[FIXED].defects:
        if "our remedy" not in defect.about:
            raise Missing("an edit in fixed is a remedy of ours: its text must say 'our remedy'")
    return ", ".join(scenario.variants)


def files(name: str, scenario: Scenario) -> str:
    """``files`` or a defect names the files with the bug"""
    if scenario.pins and not scenario.watched:
        raise Missing("neither files nor a defect names a file")
    return ", ".join(scenario.watched)


def lock_files(name: str, scenario: Scenario) -> str:
    """``locks/`` has a lock file for each set of releases that a variant runs on"""
    pins_by_path = {}
    for variant in scenario.variants:
        chosen = pins.complete(scenario, scenario.pins_of(variant))
        if set(chosen) - {pins.TORCH}:
            pins_by_path[locks.file(catalog.folder(name) / "locks", chosen)] = chosen
    paths = set((catalog.folder(name) / "locks").glob("*"))
    for path in sorted(pins_by_path.keys() ^ paths):
        problem = "is missing" if path in pins_by_path else "fits no variant"
        raise Missing(f"locks/{path.name} {problem}: python -m harness lock {name}")
    for path, chosen in pins_by_path.items():
        _check_lock(name, path, chosen)
    return count(len(pins_by_path), "file")


def _check_lock(name: str, path: Path, chosen: dict[str, str]) -> None:
    lock = locks.read(path)
    for python in lock.pythons:
        versions = lock.versions(python)
        if not versions.items() >= chosen.items() or versions.keys() & set(resolution.BASE) - {
            "setuptools"
        }:
            raise Missing(f"locks/{path.name} does not fit: python -m harness lock {name}")


def picture(name: str, scenario: Scenario) -> str:
    """``picture`` shows the bug on the site"""
    if not hasattr(catalog.load(name), "picture"):
        raise Missing("scenario.py has no picture")
    return "yes"


def statuses(name: str, scenario: Scenario) -> str:
    """``results.jsonl`` says which releases have the bug"""
    if scenario.pins and not result_file.statuses(name):
        raise Missing("no release was tested: python -m harness matrix or bisect, with --record")
    return count(len(result_file.statuses(name)), "release")


def recorded_run(name: str, scenario: Scenario) -> str:
    """``recorded.tar.xz`` is a reproduced CPU run; a bug for GPUs has one in ``results.jsonl``"""
    if Lane.CPU not in scenario.lanes:
        if not (runs := result_file.kept_runs(name)):
            raise Missing("no evidence: python -m harness evidence RUN NAME")
        return count(len(runs), "run")
    with run_folder.recorded(name) as run:
        if run is None:
            raise Missing("no recorded run: python -m tests.record RUN")
        try:
            verdict = grade(run).verdict
        except HarnessError as error:
            raise Missing(str(error)) from None
    if verdict is not Verdict.REPRODUCED:
        raise Missing(f"the recorded run is graded as {verdict}")
    return str(verdict)


def mutations(name: str, scenario: Scenario) -> str:
    """A bug that an edit puts back has ``mutations.py``; each mutation is inconclusive"""
    folder = catalog.folder(name)
    if not (folder / "mutations.py").is_file():
        if scenario.variants[BUGGY].defects:
            raise Missing("no mutations.py")
        return "none: two releases show the bug"
    _refuse_unfinished(folder / "mutations.py")
    if not (folder / catalog.MUTATIONS).is_file():
        raise Missing(f"they were never run: python -m tests.mutations {name}")
    rows = json.loads((folder / catalog.MUTATIONS).read_text(encoding="utf-8")).values()
    conclusive_mutations = [row["about"] for row in rows if row["outcome"] != Outcome.INCONCLUSIVE]
    if conclusive_mutations:
        raise Missing(f"not inconclusive: {conclusive_mutations[0]}")
    return count(len(rows), "mutation")


def report(name: str, scenario: Scenario) -> str:
    """``report.py`` shows the bug. If upstream does not know the bug, there is ``report.md``"""
    folder = catalog.folder(name)
    if not (folder / catalog.REPORT_SCRIPT).is_file():
        raise Missing(f"there is no {catalog.REPORT_SCRIPT}")
    if not scenario.known_upstream and not (folder / catalog.REPORT).is_file():
        raise Missing(f"known_upstream is False, and there is no {catalog.REPORT}")
    _refuse_unfinished(folder / catalog.REPORT_SCRIPT)
    lines = len((folder / catalog.REPORT_SCRIPT).read_text(encoding="utf-8").splitlines())
    if lines > LONGEST_SCRIPT:
        raise Missing(f"{catalog.REPORT_SCRIPT} has {lines} lines, more than {LONGEST_SCRIPT}")
    return count(lines, "line")


def _refuse_unfinished(file: Path) -> None:
    if UNFINISHED in file.read_text(encoding="utf-8"):
        raise Missing(f"{file.name} is not written yet")


def page(name: str, scenario: Scenario) -> str:
    """``README.md`` is up to date, and its section written by hand is not empty"""
    file = catalog.folder(name) / pages.PAGE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text != pages.page(name):
        raise Missing(f"README.md is out of date: python -m harness pages {name}")
    written = text.partition(pages.BY_HAND)[2].partition(pages.END)[0].strip()
    if not written:
        raise Missing("nothing is written between the marks 'by hand'")
    return count(len(written.splitlines()), "line") + " by hand"


DEMANDS: tuple[Demand, ...] = (
    story,
    harm,
    variants,
    files,
    picture,
    lock_files,
    recorded_run,
    statuses,
    mutations,
    report,
    page,
)
"""In the order of CONTRIBUTING.md: the page comes last, for it shows all the others."""


def text(demand: Demand) -> str:
    """The text of a demand, as in CONTRIBUTING.md."""
    return (demand.__doc__ or "").replace("``", "`")


def checked(name: str) -> Iterator[tuple[str, bool, str]]:
    """Each demand, whether the scenario meets it, and what was found or is missing."""
    for demand in DEMANDS:
        yield text(demand), *_met(demand, name)


def _met(demand: Demand, name: str) -> tuple[bool, str]:
    try:
        return True, demand(name, catalog.scenario(name))
    except Missing as missing:
        return False, str(missing)


def fix(name: str, console: Console) -> None:
    """Supply what a command can supply, in the order of the demands.

    Ends at the first demand that only a person can meet: the commands after it would run a scenario
    that is not finished, or write a page of it. The page is always written, and with it the pages
    of docs/, which show what all bugs have.
    """
    for demand in DEMANDS:
        if demand is page or not _met(demand, name)[0]:
            if demand in SUPPLIES:
                console.print(f"{name}: {demand.__name__.replace('_', ' ')}", style="bold")
                SUPPLIES[demand](name)
            if not _met(demand, name)[0]:
                return


def _record(name: str) -> None:
    """Run all variants on CPUs, and keep the run if it reproduces the bug."""
    if Lane.CPU in catalog.scenario(name).lanes:
        ((result, folder),) = _runs([_config([f"scenario={name}", "lane=cpu"])], terminal())
        if result.verdict is Verdict.REPRODUCED:
            _call("tests.record", str(folder))


def _search(name: str) -> None:
    """Find the affected ones of all releases."""
    subject = catalog.scenario(name).subject
    bisect.main([f"scenario={name}", f"pins.{subject}={ALL}", "--record"])


def _call(module: str, argument: str) -> None:
    """Run a module as a command. A failure shows in the demand, which stays unmet."""
    subprocess.run([sys.executable, "-m", module, argument], cwd=ROOT, check=False)


SUPPLIES: Mapping[Demand, Callable[[str], None]] = {
    lock_files: lock.write,
    recorded_run: _record,
    statuses: _search,
    mutations: lambda name: _call("tests.mutations", name),
    page: lambda name: pages.write([name]),
}
"""What supplies the thing that a demand lacks."""


REPEATS = 3
ITS_OWN = ("run", "run_json", "pid", "seconds", "ended", "loaded")
"""Facts that differ between any two runs. Forked ranks also load what torch imports for its first
optimizer."""


@dataclass(frozen=True)
class Gate:
    """One condition, and whether it holds."""

    name: str
    passed: bool
    why: str


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE", help="as to run")
    parser.add_argument(
        "--fix",
        action="store_true",
        help="first write what a command can write: locks, a recorded run, affected releases, "
        "mutations, pages",
    )
    options = parser.parse_intermixed_args(arguments)
    config, console = _config(options.overrides), terminal()
    if options.fix:
        fix(config.scenario, console)
    demands = [Gate(*demand) for demand in checked(config.scenario)]
    unmet = [demand for demand in demands if not demand.passed]
    if unmet:
        _report(console, config.scenario, unmet)
        if not options.fix and {gate.name for gate in unmet} & set(map(text, SUPPLIES)):
            console.print("with --fix, this command writes what it can")
        return ExitCode.NOT_AS_EXPECTED
    other_seed = _narrow(replace(config, seed=config.seed + 1))
    *runs, (seed_result, _) = _runs([*_repeats(config), other_seed], console)
    repeats = [result for result, _ in runs]
    if repeats[0].verdict is Verdict.UNSUPPORTED:
        console.print(f"{config.scenario}: cannot run on this machine")
        return ExitCode.UNSUPPORTED
    folders = [folder for _, folder in runs]
    conditions = [Gate("its folder meets every demand", True, count(len(demands), "demand"))]
    conditions += [*gates(repeats, seed_result), claimed(folders[0]), recorded_alike(folders)]
    _report(console, config.scenario, conditions)
    passed = all(gate.passed for gate in conditions)
    return ExitCode.AS_EXPECTED if passed else ExitCode.NOT_AS_EXPECTED


def _config(words: Sequence[str]) -> RunConfig:
    for word in words:
        if word.startswith("variant="):
            raise UserError(f"admit runs all variants: remove {word}")
    composed = command_line.compose([*words, "variant=all"])
    missing = {BUGGY, FIXED} - set(composed.variants)
    if missing:
        raise UserError(f"{composed.scenario} has no variant {' and '.join(sorted(missing))}")
    return composed


def _runs(configs: Sequence[RunConfig], console: Console) -> list[tuple[RunResult, Path]]:
    """The result and the folder of each run."""
    if configs[0].on.where != SLURM:
        with Pool() as pool:
            return [run(each, console, pool=pool) for each in configs]
    from harness.run import cluster

    ended = dict(cluster.run_all(configs, console))
    folders = [(ended[index].result, ended[index].folder) for index in range(len(configs))]
    missing = next((result for result, folder in folders if folder is None), None)
    if missing:
        raise Inconclusive("; ".join(missing.reasons))
    return [(result, folder) for result, folder in folders if folder]


def _repeats(config: RunConfig) -> Iterator[RunConfig]:
    """All variants once, then only buggy and fixed; the last time with cold launches."""
    yield config
    for _ in range(REPEATS - 2):
        yield _narrow(config)
    yield replace(_narrow(config), launch=replace(config.launch, warm=False))


def _narrow(config: RunConfig) -> RunConfig:
    return replace(config, variants=(BUGGY, FIXED))


def gates(repeats: Sequence[RunResult], seed_result: RunResult) -> Iterator[Gate]:
    """The conditions on the repeated runs, and on the run with another seed."""
    yield _gate_of(BUGGY, Outcome.SYMPTOM, "shows the documented symptom", repeats)
    yield _gate_of(FIXED, Outcome.CLEAN, "is clean, and the trigger occurred", repeats)
    others = [t for t in repeats[0].trials if t.variant not in (BUGGY, FIXED)]
    mismatches = [
        f"{t.variant} {t.outcome}, expected {t.expected}" for t in others if not t.as_expected
    ]
    outcomes = ", ".join(f"{t.variant} {t.outcome}" for t in others)
    yield Gate(
        "the other variants are as expected", not mismatches, "; ".join(mismatches) or outcomes
    )
    yield Gate("the verdict is the same with another seed", *_verdict(seed_result))
    yield _quiet([*repeats, seed_result])
    disagreements = {reason for result in [*repeats, seed_result] for reason in result.reasons}
    yield Gate("its variants agree where they must", not disagreements, "; ".join(disagreements))


def claimed(folder: Path) -> Gate:
    """The result of ``exercised`` for the records of buggy, if ``detect`` finds nothing.

    The trigger occurred there, so ``exercised`` must hold, and its text must not mention the
    symptom."""
    run_json = run_of(folder)
    module = catalog.load(run_json["scenario"])
    silent = ModuleType(module.__name__)
    vars(silent).update(vars(module))
    vars(silent)["detect"] = lambda records: None
    result, _ = grade_trial(run_json, folder, BUGGY, silent)
    name = "with detect silenced, buggy is clean: its trigger occurred"
    return Gate(name, result.outcome is Outcome.CLEAN, result.reason)


def recorded_alike(folders: Sequence[Path]) -> Gate:
    """Whether the cold launch, the last run, recorded the same as the forked launches before it.

    Times and the names of processes and runs are ignored. If the forked launches differ among
    themselves, a comparison is not possible, and the gate passes.
    """
    name = "a cold launch records the same as a forked one, bit by bit"
    try:
        forked, *others, cold = map(_facts, folders)
    except HarnessError as error:
        return Gate(name, False, str(error))
    if any(other_forked != forked for other_forked in others):
        return Gate(name, True, "not comparable: two forked launches recorded different facts")
    differ = [pair for pair in zip_longest(forked, cold) if pair[0] != pair[1]]
    if differ:
        ours, theirs = differ[0]
        return Gate(name, False, f"{len(differ)} records differ; forked {ours}, cold {theirs}")
    return Gate(name, True, f"{len(cold)} records")


def _facts(folder: Path) -> list[dict[str, Any]]:
    """The facts of buggy and fixed that must be the same in every run."""
    return [
        {name: value for name, value in record.items() if name not in ITS_OWN}
        for variant in (BUGGY, FIXED)
        for record in records_of(folder, variant)
    ]


def _gate_of(variant: str, expected: Outcome, about: str, repeats: Sequence[RunResult]) -> Gate:
    """Whether a variant had the expected outcome every time; flaky if only sometimes."""
    outcomes = [trial.outcome for trial in _trials(repeats, variant)]
    name = f"{variant} {about}, {REPEATS} times"
    listed = ", ".join(map(str, outcomes))
    if set(outcomes) == {expected}:
        return Gate(name, True, listed + _steps(repeats, variant))
    return Gate(name, False, listed if len(set(outcomes)) == 1 else f"flaky: {listed}")


def _steps(repeats: Sequence[RunResult], variant: str) -> str:
    """The steps of the symptom, if they differ between runs."""
    steps = [t.finding.step for t in _trials(repeats, variant) if t.finding]
    return f" (at steps {', '.join(map(str, steps))})" if len(set(steps)) > 1 else ""


def _trials(results: Sequence[RunResult], variant: str) -> list[Result]:
    return [trial for result in results for trial in result.trials if trial.variant == variant]


def _verdict(result: RunResult) -> tuple[bool, str]:
    reasons = "; ".join(result.reasons)
    return (
        result.verdict is Verdict.REPRODUCED,
        f"{result.verdict}{': ' if reasons else ''}{reasons}",
    )


def _quiet(results: Sequence[RunResult]) -> Gate:
    clean = [t for r in results for t in r.trials if t.expected is Outcome.CLEAN]
    alarms = [f"{t.variant}: {t.finding.message.splitlines()[0]}" for t in clean if t.finding]
    why = "; ".join(alarms) or f"0 false alarms in {len(clean)} trials"
    return Gate("no detector fires where nothing is wrong", not alarms, why)


def _report(console: Console, scenario: str, conditions: Sequence[Gate]) -> None:
    rows = [["passed" if g.passed else "FAILED", g.name, g.why] for g in conditions]
    console.print()
    console.print(table("", ["", "gate", ""], rows))
    passed = all(gate.passed for gate in conditions)
    console.print(
        f"{scenario}: {'admitted' if passed else 'not admitted'}",
        style="bold green" if passed else "bold red",
    )
