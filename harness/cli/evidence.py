"""keep a run in the scenario's folder as a JSON file

    python -m harness evidence RUN h200x2      # evidence/h200x2.json

Only what a rank saw goes in, with the date, the machine, the versions and the command; paths of
the machine do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.bugs import catalog
from harness.cli import Arguments
from harness.rank.run_folder import RUN_FILE, VERDICT_FILE, read_records
from harness.releases import locks
from harness.run.grade import grade
from harness.system.errors import ExitCode, Inconclusive
from harness.system.files import read_json, write_whole, writing

DROPPED = ("kind", "rank")
NEEDED = ("machine", "source", "environment", "command", "started")
"""What pages show of a run."""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("name", help="of the file, such as h200x2")
    options = parser.parse_args(arguments)
    keep(options.run, options.name)
    return ExitCode.AS_EXPECTED


def keep(run_folder: Path, name: str) -> None:
    """Write ``name.json`` into the scenario's folder ``evidence``.

    The run is graded again. Raises Inconclusive for a folder that is not the record of a run.
    """
    try:
        content = collect(run_folder)
    except (KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise Inconclusive(f"{run_folder} is not the record of a run: {error!r}") from None
    folder = catalog.folder(content["scenario"]) / "evidence"
    with writing(folder, "checkout"):
        folder.mkdir(exist_ok=True)
        write_whole(folder / f"{name}.json", json.dumps(content, indent=1) + "\n")


def collect(run_folder: Path) -> dict[str, Any]:
    """The run, its verdict and rank 0's steps, without paths of this machine."""
    run = read_json(run_folder / RUN_FILE)
    run |= {name: run[name] for name in NEEDED}
    result = grade(run_folder).to_json()
    for variant, trial in run["trials"].items():
        trial.pop("files", None)
        if "overlay" in trial:
            trial["overlay"].pop("site")
            trial["overlay"].pop("diff")  # upstream's text; `show` makes it again
            trial["overlay"]["lock"] = locks.versions("\n".join(trial["overlay"]["lock"]))
            trial["steps"] = [
                step
                for launch in trial["launches"]
                for step in _steps(run_folder / variant / launch, trial["ranks"])
            ]
    command = [word for word in run["command"].split() if not word.startswith("runs=")]
    environment = {k: v for k, v in run["environment"].items() if "/" not in v}
    return run | {
        "environment": environment,
        "command": " ".join(command),
        "result": result,
        "seconds": read_json(run_folder / VERDICT_FILE)["seconds"],
    }


def _steps(folder: Path, ranks: int) -> list[dict[str, Any]]:
    steps = read_records(folder, ranks).of("step", 0)
    return [{k: v for k, v in step.items() if _is_kept(k, v)} for step in steps]


def _is_kept(name: str, value: Any) -> bool:
    """Lists, with a value for each parameter or sample, are not kept: nothing reads them."""
    return name not in DROPPED and not isinstance(value, (list, dict))
