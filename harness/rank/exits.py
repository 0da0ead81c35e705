"""How a launch ended: the harness writes ``exit.json`` when all its processes have ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.bugs.api.shapes import COUNT, TEXT
from harness.system.errors import Inconclusive
from harness.system.files import read_json, write_json

FORMAT = 4
"""The format of run folders. It rises with every change after which old and new versions cannot
grade each other's folders."""


EXIT_FILE = "exit.json"


IDENTITY = {
    "format": COUNT,
    "run": TEXT,
    "scenario": TEXT,
    "variant": TEXT,
    "launch": TEXT,
    "world_size": COUNT,
}


@dataclass(frozen=True)
class Identity:
    """The launch, trial and run that a file belongs to."""

    run: str
    scenario: str
    variant: str
    launch: str
    world_size: int
    format: int = FORMAT

    @staticmethod
    def of(run: Mapping[str, Any], variant: str, launch: str) -> Identity:
        """The identity of a launch of the run with this run.json."""
        ranks = run["trials"][variant]["ranks"]
        return Identity(run["run"], run["scenario"], variant, launch, ranks)

    def unlike(self, identity: Mapping[str, Any]) -> str:
        """The first difference to a stored identity, in words; empty if there is none."""
        for name, mine in asdict(self).items():
            if identity[name] != mine:
                return _DIFFERENCES.get(name, f"another {name}").format(identity[name], mine)
        return ""


_DIFFERENCES = {
    "format": "format {}, not {}",
    "run": "another run",
    "scenario": "the scenario {}, not {}",
    "variant": "the variant {}, not {}",
    "launch": "the launch '{}', not '{}'",
    "world_size": "a trial on {} ranks, not {}",
}


def trial_folder(run_folder: Path, run: Mapping[str, Any], variant: str) -> Path:
    """The folder in which a trial runs. It has the name of its variant; in a run with detectors,
    which must not know the variant, it gets that name only when the trial has ended."""
    return run_folder / str(run["trials"][variant].get("folder", variant))


@dataclass(frozen=True)
class Exit:
    """How the processes of a launch ended."""

    code: int
    """torchrun's exit code; negative for a signal."""
    seconds: float
    timed_out: bool = False
    interrupted: bool = False
    failure: Mapping[str, Any] | None = None
    """The rank that failed first and its message, if torchrun knows them."""
    survivors: tuple[int, ...] = ()
    """Ids of processes that could not be killed: always empty on a sound machine."""
    reason: str = ""
    """Why torchrun itself failed, from its log, if it did or if it never ended."""
    preloaded: Mapping[str, float] = field(default_factory=dict)
    """What was imported before the processes were forked, ``torch`` and ``upstream``, with the wall
    seconds of the import, which all forked launches share; empty for a cold launch."""


def write_exit(folder: Path, ended: Exit, identity: Identity) -> None:
    """Write exit.json: how a launch ended."""
    write_json(folder / EXIT_FILE, {**asdict(ended), "of": asdict(identity)})


def read_exit(folder: Path, identity: Identity) -> Exit:
    """How a launch ended. Raises Inconclusive if exit.json is missing or is of another launch."""
    if not (folder / EXIT_FILE).exists():
        raise Inconclusive(f"this trial never ended: {folder} has no {EXIT_FILE}")
    content = read_json(folder / EXIT_FILE)
    if difference := identity.unlike(content.pop("of")):
        raise Inconclusive(f"{EXIT_FILE} is from {difference}")
    return Exit(**{**content, "survivors": tuple(content["survivors"])})
