"""Record runs for the tests: ``python -m tests.record RUN ...``.

The recording becomes ``recorded.tar.xz`` of the run's scenario: the run folder without logs,
checkpoints and code of upstream. Paths, host and environment are neutral. A run whose verdict
changes is refused.
"""

from __future__ import annotations

import json
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.bugs import catalog
from harness.rank.exits import EXIT_FILE
from harness.rank.run_folder import RECORDED, RUN_FILE, VERDICT_FILE
from harness.run.grade import grade
from tests.recording import read, write

SITE = "/overlays/{}/site-packages"


def main(runs: list[str]) -> None:
    for name in runs:
        if not Path(name, RUN_FILE).is_file():
            raise SystemExit(f"{name} is not a run folder: python -m tests.record RUN ...")
    for run in map(Path, runs):
        scenario = json.loads((run / RUN_FILE).read_text())["scenario"]
        with TemporaryDirectory() as folder:
            record(run, Path(folder))
            pack(Path(folder), catalog.folder(scenario))
        print(scenario, "recorded")


def pack(run: Path, folder: Path) -> None:
    """Write a run folder as the recorded run of the scenario in ``folder``. Equal runs give equal
    files."""
    with tarfile.open(folder / RECORDED, "w:xz") as tar:
        for path in sorted(path for path in run.rglob("*") if path.is_file()):
            entry = tarfile.TarInfo(str(path.relative_to(run)))
            entry.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(entry, file)


def record(run: Path, out: Path) -> None:
    """Write a neutral copy of a run folder."""
    verdict = grade(run).verdict
    content = json.loads((run / RUN_FILE).read_text())
    sites = {t["overlay"]["site"]: SITE.format(t["overlay"]["key"]) for t in _launched(content)}
    for path in sorted(run.glob("**/*")):
        if path.name == EXIT_FILE or path.match("rank_*.jsonl"):
            copy = out / path.relative_to(run)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(_neutral(path.read_text(), sites))
            if copy.suffix == ".jsonl":
                _forget_host(copy)
    for trial in _launched(content):
        trial["overlay"]["diff"], trial["overlay"]["made"] = [], False
    content["environment"] = {}
    content["machine"]["platform"] = "Linux"
    words = content["command"].split()
    content["command"] = " ".join(word for word in words if not word.startswith("runs="))
    out.joinpath(RUN_FILE).write_text(_neutral(json.dumps(content, indent=1), sites) + "\n")
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


def _forget_host(file: Path) -> None:
    records = read(file)
    records[0]["host"] = "host"
    write(file, records)


if __name__ == "__main__":
    main(sys.argv[1:])
