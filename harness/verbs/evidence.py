"""keep a run in the repository as one JSON file and a short page

    python -m harness evidence RUN docs/evidence/NAME

Only what a rank saw goes in, with the date, the machine, the versions and the command; paths of
the machine do not.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.files import write_all, writing
from harness.spec import ExitCode, Inconclusive, UserError
from harness.trial.grade import grade
from harness.trial.records import RUN_FILE, VERDICT_FILE, read_json, read_records
from harness.verbs import Arguments

DROPPED = ("kind", "rank")


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("run", type=Path, help="a run folder")
    parser.add_argument("out", type=Path, help="docs/evidence/NAME: NAME.json and NAME.md are made")
    options = parser.parse_args(arguments)
    keep(options.run, options.out)
    return ExitCode.AS_EXPECTED


def keep(run_folder: Path, out: Path) -> None:
    """Write ``out.json`` and ``out.md`` from a run folder, graded anew; both or none.

    Raises UserError where there is no such folder, and Inconclusive for what is no run's record.
    """
    if not out.parent.is_dir():
        raise UserError(f"no folder {out.parent}: name one that is there, as docs/evidence/NAME")
    try:
        kept = collect(run_folder)
        told = page(kept, out.name)
    except (KeyError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise Inconclusive(f"{run_folder} is not the record of a run: {error!r}") from None
    # Not with_suffix, which would cut a name such as fp16_overflow_0.19.8 at its last dot.
    files = {".json": json.dumps(kept, indent=1) + "\n", ".md": told}
    with writing(out, "OUT"):
        write_all({out.with_name(f"{out.name}{ending}"): text for ending, text in files.items()})


def collect(run_folder: Path) -> dict[str, Any]:
    """The run, its verdict and rank 0's steps, without paths of this machine."""
    run = read_json(run_folder / RUN_FILE)
    result = grade(run_folder).to_json()
    for variant, trial in run["trials"].items():
        trial.pop("files", None)
        if "overlay" in trial:
            trial["overlay"].pop("site")
            trial["overlay"].pop("diff")  # upstream's text; `show` makes it anew
            trial["steps"] = [
                step
                for act in trial["acts"]
                for step in _steps(run_folder / variant / act, trial["ranks"])
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
    return [{k: v for k, v in step.items() if k not in DROPPED} for step in steps]


def page(kept: Mapping[str, Any], name: str) -> str:
    """The short page beside the JSON: what ran where, and what came out."""
    first = kept["result"]["trials"][0]
    machine, environment = kept["machine"], first["environment"] or {}
    gpus = ", ".join(machine["gpus"]) or "none"
    source = kept["source"]
    versions = ", ".join(f"{k} {v}" for k, v in environment.items() if k not in ("gpu", "threads"))
    trial = next(iter(kept["trials"].values()))
    lines = [
        f"# {name}",
        "",
        f"`{kept['command']}`: **{kept['result']['verdict']}** in "
        f"{kept['seconds']['total']:.0f} s, {kept['started']}.",
        "",
        f"- releases: {', '.join(f'{n} {v}' for n, v in trial['pins'].items()) or 'torch alone'}, "
        f"dependencies as of {trial['date']}",
        f"- lane: {kept['lane']}; GPUs: {gpus}; {machine['cpus']} CPU cores; {versions}",
        f"- harness: commit {source['commit']}{', with changes' if source['dirty'] else ''}",
        "",
        "| variant | outcome | seconds | what was found |",
        "| --- | --- | --- | --- |",
    ]
    for t in kept["result"]["trials"]:
        reason = t["reason"].replace("\n", "<br>").replace("|", "\\|")
        lines.append(f"| {t['variant']} | {t['outcome']} | {t['seconds']:.1f} | {reason} |")
    lines += ["", "Shims used (all ranks): " + _shims(kept) + "."]
    return "\n".join(lines) + "\n"


def _shims(kept: Mapping[str, Any]) -> str:
    uses = kept["result"]["trials"][0]["shims"] or {}
    return ", ".join(f"{name} {count} times" for name, count in uses.items()) or "none"
