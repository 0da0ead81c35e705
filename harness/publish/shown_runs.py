"""The runs that the site shows, with their evidence: what ran where, and the result.

Of run folders, the newest complete run of each scenario that can be graded is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import catalog
from harness.api.pictures import Picture
from harness.api.spec import BUGGY, FIXED, Records, Verdict
from harness.launch.exits import read_json
from harness.runs import evidence
from harness.runs.grade import graded
from harness.runs.results import RunResult
from harness.runs.run_folder import RUN_FILE
from harness.runs.verdict_text import releases
from harness.system.errors import HarnessError, UserError
from harness.system.text import complaint

Warn = Callable[[str], None]
"""Prints one line about an input that cannot be used."""


@dataclass(frozen=True)
class Shown:
    """A graded run, and its pictures."""

    folder: Path
    run: Mapping[str, Any]
    """The content of run.json."""
    result: RunResult
    pictures: tuple[Picture, ...]


def folders(paths: Iterable[Path]) -> list[Path]:
    """The run folders in some folders; each is a run folder, or contains some.

    Raises UserError for a path that is not a folder.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise UserError(f"no folder {path}: name a folder of run folders with --runs")
        inside = [path] if (path / RUN_FILE).is_file() else sorted(path.iterdir())
        found += [folder for folder in inside if (folder / RUN_FILE).is_file()]
    return found


def newest(found: Iterable[Path], warn: Warn) -> dict[str, Shown]:
    """The newest complete run of each scenario, by its name."""
    shown: dict[str, Shown] = {}
    for scenario, folder in _by_age(found, warn):
        if scenario not in shown and (run := _complete(folder, warn)):
            shown[scenario] = run
    return shown


def _by_age(found: Iterable[Path], warn: Warn) -> list[tuple[str, Path]]:
    """The scenario of each run folder, with the folder; newest first."""
    started = []
    for folder in dict.fromkeys(path.resolve() for path in found):
        try:
            run = read_json(folder / RUN_FILE)
            started.append((str(run["scenario"]), str(run["started"]), folder))
        except (HarnessError, OSError, ValueError, KeyError, TypeError) as error:
            warn(f"{folder} is not the record of a run: {complaint(error)}")
    started.sort(key=lambda each: (each[1], str(each[2])), reverse=True)
    return [(scenario, folder) for scenario, _, folder in started]


def _complete(folder: Path, warn: Warn) -> Shown | None:
    """A run with records of buggy and fixed; otherwise None, with a warning if it cannot be graded
    or is inconclusive."""
    try:
        run = read_json(folder / RUN_FILE)
        if not {BUGGY, FIXED} <= set(run["trials"]):
            return None
        result, records = graded(folder)
        if result.verdict is Verdict.INCONCLUSIVE:
            raise HarnessError(result.reasons[0].splitlines()[0])
    except (HarnessError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = str(error) if isinstance(error, HarnessError) else complaint(error)
        warn(f"{folder} is not used: {why}")
        return None
    if not {BUGGY, FIXED} <= set(records):
        return None  # unsupported here: nothing to show, and nothing wrong
    return Shown(folder, run, result, tuple(_pictures(result.scenario, records, warn)))


def _pictures(name: str, records: Mapping[str, Records], warn: Warn) -> Iterator[Picture]:
    draw = getattr(catalog.load(name), "picture", None)
    if draw is None:
        return
    try:
        yield from list(draw(records))
    except Exception as error:  # a scenario's own code: its failure must not affect others
        warn(f"no picture of {name}: {complaint(error)}")


@dataclass(frozen=True)
class Evidence:
    """One kept run, on a CPU or on GPUs."""

    name: str
    content: Mapping[str, Any]
    """run.json, with the graded result as ``result``."""

    @property
    def where(self) -> str:
        """The GPUs, or the CPU."""
        gpus = self.content["machine"]["gpus"]
        kinds = ", ".join(dict.fromkeys(gpus))
        return f"{len(gpus)} {kinds}" if gpus and self.content["lane"] == "gpu" else "CPU"

    @property
    def verdict(self) -> str:
        return str(self.content["result"]["verdict"])

    @property
    def day(self) -> str:
        return str(self.content["started"])[:10]

    @property
    def releases(self) -> str:
        """The releases that it ran on: ``accelerate 0.29.3 (buggy) / 0.30.0 (fixed)``."""
        trials = self.content["trials"]
        return releases({variant: trial["pins"] for variant, trial in trials.items()})

    @property
    def trials(self) -> list[Mapping[str, Any]]:
        """The graded trials, as ``TrialResult``'s fields."""
        return list(self.content["result"]["trials"])

    @property
    def facts(self) -> dict[str, str]:
        """The command, the machine, the versions, the commit and the shims, by name."""
        content, machine = self.content, self.content["machine"]
        first = self.trials[0]
        shims = first["shims"] or {}
        return {
            "command": " ".join(_without_paths(content["command"])),
            "lane": f"{content['lane']}, seed {content['seed']}",
            "machine": f"{machine['cpus']} CPU cores, Python {machine['python']}, "
            f"torch {machine['torch']}",
            "harness": f"commit {content['source'].get('commit') or 'unknown'}",
            "shims used": ", ".join(f"{name} {n} times" for name, n in shims.items()) or "none",
        }

    @property
    def insufficient_checks(self) -> Mapping[str, bool]:
        """The insufficient checks, and whether each fired in the buggy variant."""
        return evidence.insufficient_checks(self.content)


def _without_paths(command: str) -> list[str]:
    """The words of a command, without those that name a folder of its machine."""
    return [word for word in command.split() if "=/" not in word and not word.startswith("runs=")]


def of_run(shown: Shown) -> Evidence:
    """The evidence of a run that was graded now."""
    return Evidence(shown.folder.name, {**shown.run, "result": shown.result.to_json()})


def kept_evidence(scenario: str) -> list[Evidence]:
    """The evidence of a scenario that comes with the harness, newest first."""
    return [Evidence(name, content) for name, content in evidence.kept(scenario)]
