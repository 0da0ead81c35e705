"""The upstream files that ranks have loaded, beside what the overlay's manifest says of them.

A rank keeps the list of what it loaded under its digest, ``RUN/loaded/DIGEST.json``: ranks that
loaded the same share one. The harness writes ``made.json`` into the launch's folder: for each rank
the digest of a list of the same files as they were made. Where the two digests are one, nothing
was changed; where they are not, the lists tell which file.
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
    """Keep a list of files in the run folder, and return its digest."""
    named = digest(loaded)
    place = run_folder / LISTS / f"{named}.json"
    place.parent.mkdir(exist_ok=True)
    if not place.exists():
        write_json(place, dict(sorted(loaded.items())))
    return named


def note(run_folder: Path, of: Identity, as_made: Callable[[Files], Files]) -> None:
    """Write down what ``as_made`` says of the files that each rank of a launch has loaded.

    A rank without whole records has nothing to compare: grading says so.
    """
    folder = run_folder / of.variant / of.launch
    try:
        records = read_records(folder, of.world_size)
    except HarnessError:
        return
    made = {
        str(proof["rank"]): keep(run_folder, as_made(files(run_folder, proof["loaded"])))
        for proof in records.of("upstream")
    }
    write_json(folder / MADE_FILE, {"of": asdict(of), "loaded": made})


def made(folder: Path, of: Identity) -> dict[int, str]:
    """By rank, the digest of its files as they were made; raises Inconclusive without one."""
    found = read_json(folder / MADE_FILE)
    wrong = _MADE(found)
    if wrong:
        raise Inconclusive(f"{folder / MADE_FILE} is not what it should be: {wrong}")
    elsewhere = of.unlike(found["of"])
    if elsewhere:
        raise Inconclusive(f"{MADE_FILE} is of {elsewhere}")
    return {int(rank): named for rank, named in found["loaded"].items() if rank.isdecimal()}


def changed(run_folder: Path, loaded: str, as_made: str | None) -> str:
    """The first file that is not as it was made, by the digests of the two lists, in words."""
    try:
        ours, theirs = files(run_folder, loaded), files(run_folder, str(as_made))
    except HarnessError:
        return "a file of upstream"
    odd = [file for file in sorted(ours) if ours[file] != theirs.get(file)]
    return f"{odd[0]}, one of {len(odd)}," if len(odd) > 1 else odd[0] if odd else "a file"


def files(run_folder: Path, named: str) -> dict[str, str]:
    """A list of files by its digest; raises Inconclusive where it is not as it was written."""
    if len(named) != len(digest({})) or not named.isalnum():
        raise Inconclusive(f"{named!r} names no list of files")
    found = read_json(run_folder / LISTS / f"{named}.json")
    if _LIST(found) or digest(found) != named:
        raise Inconclusive(f"{LISTS}/{named}.json is not what it was when it was written")
    kept: dict[str, str] = found
    return kept
