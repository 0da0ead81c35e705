"""Faults: damage to a run folder, sealed afterwards or not.

A fault that is not sealed changes files after they were written. After a sealed fault the digests
are right, as if a rank or the harness had written the damaged content.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from harness.trial import loaded_files
from tests.fuzz.base import Base
from tests.recording import changing, read, seal, write

Fault = Callable[[Random, Path, Base], str]
"""Damages a copy of a base; returns how."""


def launch(random: Random, folder: Path) -> Path:
    """The folder of a random launch."""
    return random.choice(sorted(path.parent for path in folder.glob("**/exit.json")))


def rank_file(random: Random, folder: Path) -> Path:
    return random.choice(sorted(launch(random, folder).glob("rank_*.jsonl")))


def any_file(random: Random, folder: Path) -> Path:
    return random.choice(sorted(p for p in folder.rglob("*") if p.is_file()))


# Faults of files and processes.


def lost(random: Random, folder: Path, base: Base) -> str:
    file = any_file(random, folder)
    file.unlink()
    return f"{file.relative_to(folder)} is gone"


def cut(random: Random, folder: Path, base: Base) -> str:
    file = any_file(random, folder)
    size = file.stat().st_size
    left = random.choice([0, 1, size // 2, size - 1, random.randrange(size)])
    os.truncate(file, left)
    return f"{file.relative_to(folder)} has {left} of {size} bytes"


def byte_changed(random: Random, folder: Path, base: Base) -> str:
    file = any_file(random, folder)
    content = bytearray(file.read_bytes())
    number = random.randrange(len(content))
    content[number] = random.choice([n for n in range(256) if n != content[number]])
    file.write_bytes(content)
    return f"byte {number} of {file.relative_to(folder)} is {content[number]}"


class Nothing(Exception):
    """There is nothing to damage in this way."""


def two(random: Random, items: Iterable[Any]) -> tuple[Any, Any]:
    """Two different items."""
    known = sorted(items)
    if len(known) < 2:
        raise Nothing
    one, other = random.sample(known, 2)
    return one, other


def files_swapped(random: Random, folder: Path, base: Base) -> str:
    name = random.choice(["rank_0.jsonl", "rank_1.jsonl", "exit.json", "made.json"])
    one, other = two(random, folder.glob(f"**/{name}"))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    return f"{one.relative_to(folder)} and {other.relative_to(folder)} are swapped"


def copied_over(random: Random, folder: Path, base: Base) -> str:
    one, other = two(random, folder.glob("**/rank_*.jsonl"))
    shutil.copy(one, other)
    return f"{other.relative_to(folder)} is {one.relative_to(folder)}"


def trial_copied(random: Random, folder: Path, base: Base) -> str:
    one, other = two(random, base.outcomes)
    shutil.rmtree(folder / other)
    shutil.copytree(folder / one, folder / other)
    return f"{other} is a copy of {one}"


def launches_swapped(random: Random, folder: Path, base: Base) -> str:
    one, other = two(random, {path.parent for path in folder.glob("*/*/exit.json")})
    aside = one.rename(folder / "aside")
    other.rename(one)
    aside.rename(other)
    return f"{one.relative_to(folder)} and {other.relative_to(folder)} are swapped"


def lines_changed(random: Random, folder: Path, base: Base) -> str:
    """A line is replaced, doubled, dropped or moved."""
    file = rank_file(random, folder)
    lines = file.read_text().splitlines(keepends=True)
    one, other = random.randrange(len(lines)), random.randrange(len(lines))
    how = random.choice(["replaced", "doubled", "dropped", "swapped"])
    if how == "replaced":
        lines[one] = lines[other]
    elif how == "doubled":
        lines.insert(other, lines[one])
    elif how == "dropped":
        del lines[one]
    else:
        lines[one], lines[other] = lines[other], lines[one]
    file.write_text("".join(lines))
    return f"line {one} of {file.relative_to(folder)} was {how} (with {other})"


def exit_lax(random: Random, folder: Path, base: Base) -> str:
    file = launch(random, folder) / "exit.json"
    with changing(file) as content:
        name = random.choice(sorted(content))
        content[name] = value = random.choice(ODD)
        if random.random() < 0.3:
            del content[name]
            value = "left out"
    return f"{name} of {file.relative_to(folder)} is {value!r}"


def key_twice(random: Random, folder: Path, base: Base) -> str:
    """An object of a JSON file has another value before the one that json keeps."""
    file = any_file(random, folder)
    text = file.read_text()
    found = random.choice([*re.finditer(r'"([^"]+)": ', text)])
    file.write_text(
        f"{text[: found.start()]}{found[0]}{random.choice([0, 1, 9])}, {text[found.start() :]}"
    )
    return f"{file.relative_to(folder)} has {found[1]} twice"


def odd_file(random: Random, folder: Path, base: Base) -> str:
    file = rank_file(random, folder)
    how = random.choice(
        ["a FIFO", "a link", "a folder", "endless", "brackets", "unfinished", "more"]
    )
    if how == "more":
        shutil.copy(file, file.with_name("rank_7.jsonl"))
    elif how == "unfinished":
        file.rename(file.with_name(file.name + ".part"))
    elif how == "endless":
        os.truncate(file, 10 << 30)
    elif how == "brackets":
        file.write_text("[" * 20_000 + "\n")
    else:
        kept = file.rename(folder / "aside")
        if how == "a FIFO":
            os.mkfifo(file)
        elif how == "a link":
            file.symlink_to(kept)
        else:
            file.mkdir()
    return f"{file.relative_to(folder)} is {how}"


DEATHS: list[dict[str, Any]] = [
    *({"code": code} for code in (1, -9, -11, 255)),
    *({name: True} for name in ("timed_out", "interrupted")),
    {"survivors": [4711]},
    {"code": 1, "failure": {"rank": 0, "message": "gone"}},
]


def process_died(random: Random, folder: Path, base: Base) -> str:
    file = launch(random, folder) / "exit.json"
    with changing(file) as content:
        content.update(random.choice(DEATHS))
    return f"{file.relative_to(folder)}: a process died"


# Faults of records that stay well-formed: sealed.

BEFORE_FACTS = ("kind", "rank", "step")

NUMBERS = (0, -1, 1, 1.5, -2.5, 1e300, 1e-300, 10**400, float("nan"), float("inf"))
TEXTS = ("", "0", "nan", "inf", "\x1b[2J")
ODD: list[Any] = [None, True, False, *NUMBERS, *TEXTS, [], [0], {}, {"a": 1}, [[]]]


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to every value within a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for name, each in inner:
        found.append((*path, name))
        if isinstance(each, (dict, list)):
            found += paths(each, (*path, name))
    return found


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        value = value[name]
    return value


def spoil(random: Random, holder: Any, name: Any, how: str, source: Any) -> None:
    """Remove a value, or set it to another one in ``source`` or to an odd one."""
    if how == "gone":
        del holder[name]
    elif how == "other":
        holder[name] = deepcopy(at(source, random.choice(paths(source))))
    else:
        holder[name] = random.choice(ODD)


def fact_odd(random: Random, folder: Path, base: Base) -> str:
    """A fact of a record has another type or another value."""
    file = rank_file(random, folder)
    records = read(file)
    number = random.randrange(len(records))
    path = random.choice(paths(records[number]))
    holder, name = at(records[number], path[:-1]), path[-1]
    before = holder[name]
    how = random.choice(["odd", "near", "gone", "other"])
    if how == "near" and isinstance(before, (int, float)) and not isinstance(before, bool):
        holder[name] = random.choice([before * 2, before + 1, -before, before * 0.5, 0 * before])
    else:
        spoil(random, holder, name, how, random.choice(records))
    write(file, records)
    return f"{file.relative_to(folder)}, record {number}: {path} was {how}"


def facts_cleared(random: Random, folder: Path, base: Base) -> str:
    """One fact of a rank has the same value in all records of its kind."""
    file = rank_file(random, folder)
    records = read(file)
    kind = random.choice(records)["kind"]
    same_kind = [record for record in records if record["kind"] == kind]
    if not (names := [n for n in same_kind[0] if n not in BEFORE_FACTS]):
        raise Nothing
    name = random.choice(names)
    value = random.choice([*ODD, same_kind[0][name], same_kind[-1].get(name)])
    for record in same_kind:
        record[name] = value
    write(file, records)
    return f"{file.relative_to(folder)}: {name} of all {kind} is {value!r}"


def figures_scaled(random: Random, folder: Path, base: Base) -> str:
    """All numbers of one fact are multiplied, on one rank or on all ranks of a launch."""
    file = rank_file(random, folder)
    kind, name = random.choice(
        [(r["kind"], name) for r in read(file)[2:-4] for name in r if name not in BEFORE_FACTS]
    )
    times = random.choice([3, -1, 1e-6, 1e6, 1e300])
    files = random.choice([[file], sorted(file.parent.glob("rank_*.jsonl"))])
    for each in files:
        records = read(each)
        for record in records:
            if record["kind"] == kind and name in record:
                record[name] = scaled(record[name], times)
        write(each, records)
    names = ", ".join(str(each.relative_to(folder)) for each in files)
    return f"{names}: {name} of all {kind} is {times} times as large"


def scaled(value: Any, times: float) -> Any:
    if isinstance(value, dict):
        return {name: scaled(each, times) for name, each in value.items()}
    if isinstance(value, list):
        return [scaled(each, times) for each in value]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value * times if number else value


def lists_emptied(random: Random, folder: Path, base: Base) -> str:
    """The ranks of a launch loaded no file of their overlay, and made.json agrees."""
    launch_folder = launch(random, folder)
    nothing = loaded_files.keep(folder, {})
    for file in launch_folder.glob("rank_*.jsonl"):
        records = read(file)
        for record in records:
            if record["kind"] == "upstream":
                record["loaded"] = nothing
        write(file, records)
    with changing(launch_folder / loaded_files.MADE_FILE) as made:
        made["loaded"] = dict.fromkeys(made["loaded"], nothing)
    return f"{launch_folder.relative_to(folder)}: nothing was loaded"


def records_changed(random: Random, folder: Path, base: Base) -> str:
    """Records are left out, doubled or moved."""
    file = rank_file(random, folder)
    records = read(file)
    how = random.choice(["dropped", "doubled", "swapped", "halved", "kind dropped"])
    one, other = random.randrange(len(records)), random.randrange(len(records))
    if how == "dropped":
        del records[one]
    elif how == "doubled":
        records.insert(other, dict(records[one]))
    elif how == "swapped":
        records[one], records[other] = records[other], records[one]
    elif how == "halved":
        records = [r for r in records if not r["step"] or r["step"] % 2]
    else:
        records = [r for r in records if r["kind"] != records[one]["kind"]]
    write(file, records)
    return f"{file.relative_to(folder)}: records {how} ({one}, {other})"


def ranks_exchanged(random: Random, folder: Path, base: Base) -> str:
    """A rank's file contains the records of another rank, under its own number."""
    one, other = two(random, launch(random, folder).glob("rank_*.jsonl"))
    ours, theirs = read(one), read(other)
    own = ours[0]["rank"]
    write(one, [ours[0], *({**record, "rank": own} for record in theirs[1:])])
    return f"{one.relative_to(folder)} says what {other.name} does"


def trials_exchanged(random: Random, folder: Path, base: Base) -> str:
    """The files of one trial contain the records of another trial."""
    one, other = two(random, base.outcomes)
    for file in sorted((folder / one).glob("**/rank_*.jsonl")):
        theirs = folder / other / file.relative_to(folder / one)
        if theirs.is_file():
            write(file, [read(file)[0], *read(theirs)[1:]])
    return f"{one} says what {other} does"


# Faults of run.json: sealed or not.


def run_edited(random: Random, folder: Path, base: Base) -> str:
    with changing(folder / "run.json") as run:
        top = random.choice(["trials"] * 6 + sorted(run))
        inner = [(), *paths(run[top])] if isinstance(run[top], dict) else [()]
        path = (top, *random.choice(inner))
        how = random.choice(["odd", "gone", "other"])
        spoil(random, at(run, path[:-1]), path[-1], how, run)
    return f"run.json: {path} was {how}"


SINGLE: list[Fault] = [
    lost,
    cut,
    byte_changed,
    lines_changed,
    exit_lax,
    odd_file,
    process_died,
    key_twice,
]
FILES: list[Fault] = [*SINGLE, files_swapped, copied_over, trial_copied, launches_swapped]
FACTS: list[Fault] = [fact_odd, fact_odd, facts_cleared, figures_scaled]
RECORDS = [*FACTS, lists_emptied, records_changed, ranks_exchanged, trials_exchanged]


def damage(random: Random, folder: Path, base: Base) -> tuple[str, bool]:
    """Damage a copy of a base at random; returns how, and whether it was sealed again.

    The first is empty if there was nothing to damage.
    """
    try:
        return _damage(random, folder, base)
    except Nothing:
        return "", True


def _damage(random: Random, folder: Path, base: Base) -> tuple[str, bool]:
    family = random.choice(["files", "records", "records", "run.json"])
    if family == "files":
        return random.choice(FILES)(random, folder, base), False
    if family == "records":
        how, sealed = random.choice(RECORDS)(random, folder, base), True
    else:
        how, sealed = run_edited(random, folder, base), random.random() < 0.7
    if sealed:
        try:
            seal(folder)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError):
            sealed = False  # the content is too odd to seal, so the digests are wrong
    return how, sealed
