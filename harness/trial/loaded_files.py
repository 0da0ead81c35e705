"""The upstream files that ranks have loaded, compared with the overlay's manifest.

A rank stores the list of the files that it loaded under the list's digest,
``RUN/loaded/DIGEST.json``; ranks that loaded the same files share one list. The harness writes
``made.json`` into the launch's folder: for each rank the digest of a list of the same files as the
overlay was made. If the two digests are equal, no file was changed; otherwise the lists show which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

from harness.errors import HarnessError, Inconclusive
from harness.facts.shapes import TEXT, by_name, held
from harness.trial.records import IDENTITY, Identity, digest, read_json, read_records, write_json

MADE_FILE = "made.json"
LISTS = "loaded"

_MADE = held({"of": held(IDENTITY), "loaded": by_name(TEXT)})
_LIST = by_name(TEXT)

Files = Mapping[str, str]
"""SHA-256 by the path of a file in site-packages."""


def keep(run_folder: Path, loaded: Files) -> str:
    """Store a list of files in the run folder; returns its digest."""
    name = digest(loaded)
    path = run_folder / LISTS / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    if not path.exists():
        write_json(path, dict(sorted(loaded.items())))
    return name


def write_made(run_folder: Path, identity: Identity, as_made: Callable[[Files], Files]) -> None:
    """Write made.json: ``as_made`` returns the given files as the overlay was made.

    Writes nothing if a rank's records are incomplete: grading reports that.
    """
    folder = run_folder / identity.variant / identity.launch
    try:
        records = read_records(folder, identity.world_size)
    except HarnessError:
        return
    made = {
        str(record["rank"]): keep(run_folder, as_made(files(run_folder, record["loaded"])))
        for record in records.of("upstream")
    }
    write_json(folder / MADE_FILE, {"of": asdict(identity), "loaded": made})


def made(folder: Path, identity: Identity) -> dict[int, str]:
    """By rank, the digest of its list of files as made; raises Inconclusive without a made.json."""
    content = read_json(folder / MADE_FILE)
    wrong = _MADE(content)
    if wrong:
        raise Inconclusive(f"{folder / MADE_FILE} is not what it should be: {wrong}")
    difference = identity.unlike(content["of"])
    if difference:
        raise Inconclusive(f"{MADE_FILE} is from {difference}")
    return {int(rank): name for rank, name in content["loaded"].items() if rank.isdecimal()}


def changed(run_folder: Path, loaded: str, as_made: str | None) -> str:
    """The first file in which two lists, named by their digests, differ; in words."""
    try:
        ours, theirs = files(run_folder, loaded), files(run_folder, str(as_made))
    except HarnessError:
        return "a file of upstream"
    odd = [file for file in sorted(ours) if ours[file] != theirs.get(file)]
    return f"{odd[0]}, one of {len(odd)}," if len(odd) > 1 else odd[0] if odd else "a file"


def files(run_folder: Path, name: str) -> dict[str, str]:
    """The list of files with this digest; raises Inconclusive if it was changed or is missing."""
    if len(name) != len(digest({})) or not name.isalnum():
        raise Inconclusive(f"{name!r} is not the digest of a list of files")
    content: dict[str, str] = read_json(run_folder / LISTS / f"{name}.json")
    if _LIST(content) or digest(content) != name:
        raise Inconclusive(f"{LISTS}/{name}.json was changed since it was written")
    return content
