"""Evidence, to be opened on a bug's page: what ran where, and what came out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from harness import catalog
from harness.report import releases
from harness.site.runs import Shown
from harness.spec import BUGGY


@dataclass(frozen=True)
class Evidence:
    """One run that is kept, on a CPU or on GPUs."""

    name: str
    content: Mapping[str, Any]
    """run.json, with the result of its grading as ``result``."""

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
        """What it ran on: ``accelerate 0.29.3 (buggy) / 0.30.0 (fixed)``."""
        trials = self.content["trials"]
        return releases({variant: trial["pins"] for variant, trial in trials.items()})

    @property
    def trials(self) -> list[Mapping[str, Any]]:
        """The graded trials, as ``TrialResult``'s fields."""
        return list(self.content["result"]["trials"])

    @property
    def facts(self) -> dict[str, str]:
        """The command, the machine, the versions, the commit and the shims, by what they are."""
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
    def blind(self) -> dict[str, bool]:
        """The usual checks, and whether each fired in the buggy variant."""
        for trial in self.trials:
            if trial["variant"] == BUGGY and trial["insufficient_checks"]:
                return dict(trial["insufficient_checks"])
        return {}


def _without_paths(command: str) -> list[str]:
    """A command's words, less those that name a folder of the machine that ran it."""
    return [word for word in command.split() if "=/" not in word and not word.startswith("runs=")]


def of_run(shown: Shown) -> Evidence:
    """A run that was graded just now."""
    return Evidence(shown.folder.name, {**shown.run, "result": shown.result.to_json()})


def kept(scenario: str) -> Iterator[Evidence]:
    """The evidence of a scenario that is kept with the harness, the newest first."""
    files = (catalog.folder(scenario) / "evidence").glob("*.json")
    found = [Evidence(file.stem, json.loads(file.read_text(encoding="utf-8"))) for file in files]
    yield from sorted(found, key=lambda each: str(each.content["started"]), reverse=True)
