"""Which outcomes a careful person accepts for a damaged run, without the harness's grading.

If files were changed and not sealed again, no outcome of that trial is acceptable but inconclusive,
which is always acceptable. Sealed records must have the same form as before the damage; for some
scenarios their content is judged as well (``OPINIONS``).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from harness.results import RunResult
from tests.fuzz.base import Base

Record = Mapping[str, Any]
Launches = Mapping[str, Mapping[int, list[Record]]]
"""By launch and rank, what was recorded."""
Params = Mapping[str, Any]
"""The parameters of a trial, from run.json."""

IMMATERIAL = {"command", "started", "machine", "environment", "launch", "source", "run", "seed"}
"""Keys of run.json that do not affect the verdict, if the ranks have read the same run.json."""
IMMATERIAL_OF_A_TRIAL = {"about", "date"}
IMMATERIAL_OF_AN_OVERLAY = {"lock", "diff", "made"}


class Unreadable(Exception):
    """A file is not a regular JSON file."""


def audit(base: Base, folder: Path, sealed: bool, result: RunResult) -> str:
    """What is wrong with a result; empty where nothing is."""
    found = {trial.variant: str(trial.outcome) for trial in result.trials}
    believed = {variant: allowed(base, folder, variant, sealed) for variant in found}
    for variant, outcome in found.items():
        if outcome in ("symptom", "clean") and outcome not in believed[variant]:
            return f"{variant} is {outcome}, where a careful person allows {believed[variant]}"
    if str(result.verdict) == "reproduced":
        pair = (found.get("buggy"), found.get("fixed"))
        if pair != ("symptom", "clean"):
            return f"reproduced, where buggy and fixed are {pair}"
        if any(outcome not in ("symptom", "clean") for outcome in found.values()):
            return f"reproduced, where the trials are {found}"
    return ""


def allowed(base: Base, folder: Path, variant: str, sealed: bool) -> set[str]:
    """Which outcomes besides inconclusive a careful person accepts."""
    if variant not in base.outcomes:
        return set()
    as_it_was = {base.outcomes[variant]}
    try:
        before, now = load(base.folder / "run.json"), load(folder / "run.json")
        if before != now and not (sealed and _same_run(before, now, variant)):
            return set()
        if _same_files(base.folder / variant, folder / variant, as_such=not sealed):
            return as_it_was
        if not sealed:
            return set()
        params = before["trials"][variant]["params"]
        return _of_records(
            base, params, _launches(base.folder / variant), _launches(folder / variant)
        )
    except (Unreadable, KeyError, TypeError, AttributeError, OverflowError):
        return set()


def load(path: Path) -> Any:
    """The content of a regular JSON file of a reasonable size."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 26:
        raise Unreadable(path)
    try:
        return json.loads(path.read_bytes().decode(), object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise Unreadable(path) from None


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key that is there twice")
    return dict(pairs)


def _same_run(before: Mapping[str, Any], now: Mapping[str, Any], variant: str) -> bool:
    """Whether two run.json agree in everything that a trial's outcome depends on."""
    dropped = IMMATERIAL | {"trials", "pins"}
    if _without(before, dropped) != _without(now, dropped) or type(now["seed"]) is not int:
        return False
    return _material(before["trials"][variant]) == _material(now["trials"][variant])


def _material(trial: Mapping[str, Any]) -> dict[str, Any]:
    kept, overlay = _without(trial, IMMATERIAL_OF_A_TRIAL), trial["overlay"]
    kept["overlay"] = _without(overlay, IMMATERIAL_OF_AN_OVERLAY)
    pinned = tuple(f"{name}==" for name in trial["pins"])
    kept["locked"] = [line for line in overlay["lock"] if line.startswith(pinned)]
    return kept


def _same_files(before: Path, now: Path, *, as_such: bool) -> bool:
    """Whether a trial's files are the same: byte by byte, or in content if they were sealed."""
    if now.is_symlink() or not now.is_dir():
        return False
    names = {p.relative_to(before) for p in before.rglob("*") if p.is_file()}
    if names != {p.relative_to(now) for p in now.rglob("*") if not p.is_dir() or p.is_symlink()}:
        return False
    return all(_same_file(before / name, now / name, as_such) for name in names)


def _same_file(before: Path, now: Path, as_such: bool) -> bool:
    if now.is_symlink() or not now.is_file():
        return False
    if now.suffix == ".jsonl":
        if as_such:
            return now.stat().st_size < 1 << 26 and before.read_bytes() == now.read_bytes()
        return _plain(before) == _plain(now)
    ours, theirs = load(before), load(now)
    dropped = {"seconds", "preloaded", "reason"} | (set() if as_such else {"of", "records"})
    seconds = theirs.pop("seconds", 0.0) if isinstance(theirs, dict) else None
    if not isinstance(seconds, (int, float)) or not _number(seconds) or seconds < 0:
        return False
    return _without(ours, dropped) == _without(theirs, dropped)


def _without(content: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in content.items() if name not in names}


IDENTITY = {"format", "run", "run_json", "scenario", "variant", "launch"}
IDENTITY |= {"seed", "params", "world_size"}
"""What sealing writes into a rank's first record."""


def _plain(path: Path) -> list[Record]:
    if path.is_symlink() or not path.is_file() or path.stat().st_size > 1 << 26:
        raise Unreadable(path)
    try:
        records = [json.loads(line) for line in path.read_bytes().decode().splitlines()]
        dropped = {"begin": IDENTITY}
        return [
            {k: v for k, v in r.items() if k not in dropped.get(r["kind"], ())} for r in records
        ]
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
        raise Unreadable(path) from None


def _launches(folder: Path) -> Launches:
    return {
        str(end.parent.relative_to(folder)): {
            int(p.stem.removeprefix("rank_")): _plain(p) for p in end.parent.glob("rank_*.jsonl")
        }
        for end in sorted(folder.glob("**/exit.json"))
    }


def _of_records(base: Base, params: Params, before: Launches, now: Launches) -> set[str]:
    """Which outcomes changed records allow, if they are well-formed."""
    if set(before) != set(now) or any(set(before[launch]) != set(now[launch]) for launch in before):
        return set()
    ranks = [(launch, rank) for launch in before for rank in before[launch]]
    if any(_proof(before[launch][rank]) != _proof(now[launch][rank]) for launch, rank in ranks):
        return set()
    others = {v: _launches(base.folder / v) for v in base.outcomes}
    alike = [v for v, launches in others.items() if _of_the_bug(launches) == _of_the_bug(now)]
    if alike:  # these records are those of another trial
        return {base.outcomes[variant] for variant in alike}
    known = _forms(others)
    if not all(
        _same_form(before[launch][rank], now[launch][rank], known) for launch, rank in ranks
    ):
        return set()
    opinion = OPINIONS.get(base.scenario)
    return opinion(now, params) if opinion else {"symptom", "clean"}


def _of_the_bug(launches: Launches) -> dict[str, dict[int, list[Record]]]:
    """The records without those of the harness."""
    return {
        launch: {n: [r for r in rs if r["kind"] not in OF_HARNESS] for n, rs in ranks.items()}
        for launch, ranks in launches.items()
    }


Forms = dict[str, tuple[set[frozenset[str]], dict[str, set[str]]]]
"""By kind: the sets of facts that its records have, and the types of each fact."""


def _forms(trials: Mapping[str, Launches]) -> Forms:
    found: Forms = defaultdict(lambda: (set(), defaultdict(set)))
    for record in chain.from_iterable(_all(launches) for launches in trials.values()):
        names, sorts = found[record["kind"]]
        names.add(frozenset(record))
        for name, value in record.items():
            sorts[name].add(_sort(value))
    return found


def _same_form(before: list[Record], now: list[Record], known: Forms) -> bool:
    """Whether records have the same form: for each kind the same steps in order, facts with the
    same names, values of the same types; and the harness's records first and last."""
    if [r["kind"] for r in now[:2]] != ["begin", "start"] or _steps(before) != _steps(now):
        return False
    if [r["kind"] for r in now[-4:]] != ["upstream", "shims", "phases", "end"]:
        return False
    for record in now:
        names, sorts = known[record["kind"]]
        if frozenset(record) not in names or record["rank"] != before[0]["rank"]:
            return False
        if any(_sort(value) not in sorts[name] for name, value in record.items()):
            return False
    return True


def _steps(records: list[Record]) -> dict[str, list[Any]]:
    found = defaultdict(list)
    for record in records:
        found[record["kind"]].append(record["step"])
    return found


def _sort(value: Any) -> str:
    """The type of a value, where NaN and infinity are not numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "flag"
    if value in ("nan", "inf", "-inf"):  # recorded as text where an overflow is the symptom
        return "number"
    if isinstance(value, (int, float)):
        return "number" if _number(value) else "no number"
    return type(value).__name__


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


OF_HARNESS = {"begin", "start", "upstream", "shims", "phases", "end"}
PROOF = {"begin", "upstream", "end"}


def _proof(records: list[Record]) -> list[Record]:
    """The records that show which code a rank ran, and that its records are complete."""
    proof = (r.items() for r in records if r["kind"] in PROOF)
    return [{k: v for k, v in items if k not in ("host", "pid")} for items in proof]


# Opinions: an independent judgement of a scenario's records.


def _all(launches: Launches, kind: str | None = None, rank: int | None = None) -> list[Record]:
    records = chain.from_iterable(chain.from_iterable(r.values()) for r in launches.values())
    return [r for r in records if kind in (None, r["kind"]) and rank in (None, r["rank"])]


def _bf16_clip(launches: Launches, params: Params) -> set[str]:
    steps, checks = _all(launches, "step"), _all(launches, "checkpoint")
    failures = [f for check in checks for f in check["failures"]]
    clipping = params["gradient_clipping"]
    active = all(0 < clipping < step["grad_norm"] for step in steps)
    if any(step["differing"] for step in steps):
        return {"symptom"} if failures else set()
    return {"clean"} if not failures and (active or not clipping) else set()


def _sampler_shards(launches: Launches, params: Params) -> set[str]:
    records = _all(launches, "epoch")
    epochs: dict[int, list[int]] = defaultdict(list)
    for record in records:
        epochs[record["step"]] += record["seen"]
    whole, drawn = set(range(params["samples"])), epochs.values()
    if all(set(d) == whole and len(d) == len(whole) for d in drawn):
        return {"clean"}
    return {"symptom"} if all(len(d) == len(whole) and set(d) <= whole for d in drawn) else set()


def _streaming_map_resume(launches: Launches, params: Params) -> set[str]:
    (seen,) = _all(launches, "resume")
    whole, got = seen["whole"], [*seen["before"], *seen["after"]]
    if len(set(whole)) < len(whole):
        return set()
    if got == whole:
        return {"clean"}
    lost = set(whole) - set(got)
    return {"symptom"} if lost and len(set(got)) == len(got) and set(got) <= set(whole) else set()


def _warmup_first_step(launches: Launches, params: Params) -> set[str]:
    outcomes, low, own = set(), params["low"], params[params["own"]]
    for rank in {r["rank"] for r in _all(launches, "rate")}:
        rates = [(r["step"], rate) for r in _all(launches, "rate", rank) for rate in r["rates"]]
        span = params["high"] - low
        right = {n: low + span * min(max(n - 2, 0) / params["warmup"], 1) for n, _ in rates}
        error = 1e-6 * max(right.values(), default=0.0)
        wrong = {(n, rate) for n, rate in rates if abs(rate - right[n]) > error}
        outcomes.add("clean" if not wrong else "symptom" if wrong == {(1, own)} else "odd")
    return outcomes - {"odd"} if len(outcomes) == 1 else set()


OPINIONS: Mapping[str, Callable[[Launches, Params], set[str]]] = {
    "bf16_clip": _bf16_clip,
    "sampler_shards": _sampler_shards,
    "streaming_map_resume": _streaming_map_resume,
    "warmup_first_step": _warmup_first_step,
}
