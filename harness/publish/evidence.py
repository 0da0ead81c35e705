"""The evidence on a bug's page: what ran where, and the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.publish.runs import Shown
from harness.runs import evidence
from harness.runs.report import releases


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


def kept(scenario: str) -> list[Evidence]:
    """The evidence of a scenario that comes with the harness, newest first."""
    return [Evidence(name, content) for name, content in evidence.kept(scenario)]
