"""Keep runs for the tests: ``python -m tests.record RUN ...`` makes the folder
``recorded`` of the run's scenario.

Left out are logs, checkpoints and upstream's text, and of the lists of loaded files all but what
grading looks for; paths, host and environment are made neutral, and the digests made anew for that.
A run that does not grade as it did is refused.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from harness import catalog
from harness.trial import loaded_files
from harness.trial.grade import grade
from harness.trial.loaded_files import MADE_FILE
from harness.trial.records import EXIT_FILE, RUN_FILE, VERDICT_FILE
from harness.upstream.overlay import SITE as SITE_FOLDER
from tests.recording import read, seal, write

SITE = "/overlays/{}/site-packages"


def main(runs: list[str]) -> None:
    for run in map(Path, runs):
        told = json.loads((run / RUN_FILE).read_text())
        out = catalog.folder(told["scenario"]) / "recorded"
        keep(run, out)
        print(told["scenario"], grade(out).verdict)


def keep(run: Path, out: Path) -> None:
    """A neutral copy of a run folder."""
    verdict = grade(run).verdict
    told = json.loads((run / RUN_FILE).read_text())
    sites = {t["overlay"]["site"]: SITE.format(t["overlay"]["key"]) for t in _launched(told)}
    shutil.rmtree(out, ignore_errors=True)
    for path in sorted(run.glob("**/*")):
        if path.name in (EXIT_FILE, MADE_FILE) or path.match("rank_*.jsonl"):
            place = out / path.relative_to(run)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(_neutral(path.read_text(), sites))
            if place.suffix == ".jsonl":
                _forget_host(place)
    for made in sorted(out.glob(f"**/{MADE_FILE}")):
        _shorten_lists(run, out, made)
    for trial in _launched(told):
        trial["overlay"]["diff"], trial["overlay"]["made"] = [], False
    told["environment"] = {}
    told["machine"]["platform"] = "Linux"
    told["command"] = " ".join(w for w in told["command"].split() if not w.startswith("runs="))
    out.joinpath(RUN_FILE).write_text(_neutral(json.dumps(told, indent=1), sites) + "\n")
    seal(out)
    result = grade(out)
    if result.verdict is not verdict:
        raise SystemExit(f"{run}: {verdict}, but its copy is {result.verdict}: {result.reasons}")
    taken = json.loads((run / VERDICT_FILE).read_text())["seconds"]
    told_ = result.to_json() | {"seconds": taken}
    out.joinpath(VERDICT_FILE).write_text(json.dumps(told_, indent=1) + "\n")


def _launched(told: dict[str, Any]) -> list[dict[str, Any]]:
    return [trial for trial in told["trials"].values() if "overlay" in trial]


def _neutral(text: str, sites: dict[str, str]) -> str:
    for site, neutral in sites.items():
        text = text.replace(site, neutral)
    return text


def _shorten_lists(run: Path, out: Path, made: Path) -> None:
    """Keep of a launch's lists of loaded files what grading looks for: a list has 1500 files."""
    told = json.loads(made.read_text())
    for file in sorted(made.parent.glob("rank_*.jsonl")):
        records = read(file)
        (proof,) = (record for record in records if record["kind"] == "upstream")
        names = {m["file"].partition(f"/{SITE_FOLDER}/")[2] for m in proof["modules"].values()}
        rank, names = file.stem.removeprefix("rank_"), names | set(proof["files"])

        def shorter(named: str, names: set[str] = names) -> str:
            whole = loaded_files.files(run, named)
            return loaded_files.keep(out, {name: whole[name] for name in sorted(names)})

        proof["loaded"], told["loaded"][rank] = map(
            shorter, (proof["loaded"], told["loaded"][rank])
        )
        write(file, records)
    made.write_text(json.dumps(told))


def _forget_host(file: Path) -> None:
    records = read(file)
    records[0]["host"] = "host"
    write(file, records)


if __name__ == "__main__":
    main(sys.argv[1:])
