"""Record runs for the tests: ``python -m tests.record RUN ...``.

The recording becomes the folder ``recorded`` of the run's scenario.

A recording has no logs, checkpoints or code of upstream, and its lists of loaded files contain only
what grading needs. Paths, host and environment are neutral, and all digests are computed again. A
run whose verdict changes is refused.
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
    for name in runs:
        if not Path(name, RUN_FILE).is_file():
            raise SystemExit(f"{name} is not a run folder: python -m tests.record RUN ...")
    for run in map(Path, runs):
        content = json.loads((run / RUN_FILE).read_text())
        out = catalog.folder(content["scenario"]) / "recorded"
        record(run, out)
        print(content["scenario"], grade(out).verdict)


def record(run: Path, out: Path) -> None:
    """A neutral copy of a run folder."""
    verdict = grade(run).verdict
    content = json.loads((run / RUN_FILE).read_text())
    sites = {t["overlay"]["site"]: SITE.format(t["overlay"]["key"]) for t in _launched(content)}
    shutil.rmtree(out, ignore_errors=True)
    for path in sorted(run.glob("**/*")):
        if path.name in (EXIT_FILE, MADE_FILE) or path.match("rank_*.jsonl"):
            copy = out / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(_neutral(path.read_text(), sites))
            if copy.suffix == ".jsonl":
                _forget_host(copy)
    for made in sorted(out.glob(f"**/{MADE_FILE}")):
        _shorten_lists(run, out, made)
    for trial in _launched(content):
        trial["overlay"]["diff"], trial["overlay"]["made"] = [], False
    content["environment"] = {}
    content["machine"]["platform"] = "Linux"
    words = content["command"].split()
    content["command"] = " ".join(word for word in words if not word.startswith("runs="))
    out.joinpath(RUN_FILE).write_text(_neutral(json.dumps(content, indent=1), sites) + "\n")
    seal(out)
    result = grade(out)
    if result.verdict is not verdict:
        raise SystemExit(f"{run}: {verdict}, but its copy is {result.verdict}: {result.reasons}")
    seconds = json.loads((run / VERDICT_FILE).read_text())["seconds"]
    stored = result.to_json() | {"seconds": seconds}
    out.joinpath(VERDICT_FILE).write_text(json.dumps(stored, indent=1) + "\n")


def _launched(content: dict[str, Any]) -> list[dict[str, Any]]:
    return [trial for trial in content["trials"].values() if "overlay" in trial]


def _neutral(text: str, sites: dict[str, str]) -> str:
    for site, neutral in sites.items():
        text = text.replace(site, neutral)
    return text


def _shorten_lists(run: Path, out: Path, made: Path) -> None:
    """Shorten a launch's lists of loaded files, of 1,500 files each, to what grading needs."""
    content = json.loads(made.read_text())
    for file in sorted(made.parent.glob("rank_*.jsonl")):
        records = read(file)
        (upstream,) = (record for record in records if record["kind"] == "upstream")
        names = {m["file"].partition(f"/{SITE_FOLDER}/")[2] for m in upstream["modules"].values()}
        rank, names = file.stem.removeprefix("rank_"), names | set(upstream["files"])

        def shorten(digest: str, names: set[str] = names) -> str:
            files = loaded_files.files(run, digest)
            return loaded_files.keep(out, {name: files[name] for name in sorted(names)})

        upstream["loaded"] = shorten(upstream["loaded"])
        content["loaded"][rank] = shorten(content["loaded"][rank])
        write(file, records)
    made.write_text(json.dumps(content))


def _forget_host(file: Path) -> None:
    records = read(file)
    records[0]["host"] = "host"
    write(file, records)


if __name__ == "__main__":
    main(sys.argv[1:])
