"""Is what a trial left proof of anything?

Of each launch: that it ended by itself; that its files are of this launch and
unmodified; that each rank recorded what it was going to, once and in order; and that it ran the
pinned code, every file of it as the overlay was made. Whatever is not so raises, and the trial is
inconclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from harness import catalog
from harness.errors import HarnessError, Inconclusive
from harness.facts.plan import BrokenPromise, Ledger, Plan, refuse_unlike, to_json, wrong_facts
from harness.spec import Lane, Record, Records
from harness.trial import loaded_files, run_schema
from harness.trial.records import (
    BEGIN,
    FIRST,
    HOUSE,
    LAST,
    ON_GPU,
    BrokenRecords,
    Exit,
    Identity,
    digest,
    read_exit,
    read_records,
    whole_plan,
)
from harness.upstream.overlay import INSTALLED


def proven(run: Mapping[str, Any], folder: Path, variant: str, exits: list[Exit]) -> Records:
    """The records of a trial in ``folder``, if they are proof; the exits of its launches are added
    to ``exits``. Raises HarnessError, with the reason, where they are not."""
    launches = {
        launch: _proven_act(run, folder, Identity.of(run, variant, launch), exits)
        for launch in run["trials"][variant]["launches"]
    }
    return merged(launches, run_schema.params(run, variant))


def merged(launches: Mapping[str, Records], params: Any) -> Records:
    """The records of a trial's launches as one, each with the name of its launch."""
    ranks = {rank for records in launches.values() for rank in records.ranks}
    return Records(
        {
            rank: [
                {**record, "launch": launch}
                for launch, records in launches.items()
                for record in records.by_rank.get(rank, ())
            ]
            for rank in sorted(ranks)
        },
        params,
    )


def _proven_act(run: Mapping[str, Any], folder: Path, of: Identity, exits: list[Exit]) -> Records:
    place = folder / of.launch
    for each in (folder, place):
        if each.is_symlink():
            raise Inconclusive(f"{each} is a link")
    exits.append(read_exit(place, of))
    _check_exit(exits[-1])
    records = read_records(place, of.world_size)
    _check_identities(records, of)
    _check_promises(records, {n: planned(run, of.variant, of.launch, n) for n in records.ranks})
    _check_lane(records, run["lane"])
    _check_machine(records, {**run["machine"], "threads": run["launch"].get("threads")})
    _check_upstream(folder, records, of, run["trials"][of.variant])
    _check_shims(records, run["trials"][of.variant]["shims"])
    return records


def _check_exit(exit_: Exit) -> None:
    if exit_.survivors:
        raise Inconclusive(f"processes {exit_.survivors} would not end")
    if exit_.interrupted:
        raise Inconclusive("interrupted")
    if exit_.timed_out:
        raise Inconclusive(f"ended at its deadline after {exit_.seconds:.0f} s{_why(exit_)}")
    if exit_.code:
        raise Inconclusive(_crash(exit_))


def _crash(exit_: Exit) -> str:
    if exit_.failure is None:
        return f"torchrun left with exit code {exit_.code}{_why(exit_)}"
    return f"rank {exit_.failure['rank']} failed first: {exit_.failure['message']}"


def _why(exit_: Exit) -> str:
    return f": {exit_.reason}" if exit_.reason else ""


def _check_identities(records: Records, of: Identity) -> None:
    """Every rank's file says that it is of this launch, and is of a process of its own."""
    processes: dict[Any, int] = {}
    for rank in records.ranks:
        first = records.by_rank[rank][0]
        if first["kind"] != BEGIN or wrong_facts(HOUSE[BEGIN].of(0), first):
            raise BrokenRecords(f"rank {rank} did not say who it is")
        elsewhere = of.unlike(first)
        if elsewhere:
            raise BrokenRecords(f"rank {rank}: its records are of {elsewhere}")
        other = processes.setdefault(first.get("pid"), rank)
        if other != rank:
            raise BrokenRecords(f"ranks {other} and {rank} say that they were one process")


def _check_promises(records: Records, plans: Mapping[int, Plan]) -> None:
    """Each rank recorded what it promised, and all of them alike what they should have alike."""
    for rank, plan in plans.items():
        _check_complete(rank, plan, records.by_rank[rank])
    try:
        refuse_unlike({rank: whole_plan(plan) for rank, plan in plans.items()}, records.by_rank)
    except BrokenPromise as error:
        raise BrokenRecords(str(error)) from None


def _check_complete(rank: int, plan: Plan, records: Sequence[Record]) -> None:
    """A rank recorded what it promised, and promised what the scenario's plan has."""
    if records[0].get("promised") != to_json(plan):
        raise BrokenRecords(f"rank {rank} promised other records than this scenario's plan has")
    kinds = tuple(record["kind"] for record in records)
    if kinds[: len(FIRST)] != FIRST or kinds[-len(LAST) :] != LAST:
        raise BrokenRecords(f"rank {rank}: its records do not begin and end as a rank's do")
    try:
        ledger = Ledger(whole_plan(plan))
        for record in records:
            ledger.take(record)
        ledger.close()
    except BrokenPromise as error:
        raise BrokenRecords(f"rank {rank}: {error}") from None


def planned(run: Mapping[str, Any], variant: str, launch: str, rank: int) -> Any:
    """What a rank of a launch is going to record, by its scenario."""
    module = catalog.load(run["scenario"])
    return asked(module, "plan", run_schema.place(run, variant, launch, rank))


def asked(
    module: ModuleType, name: str, *arguments: Any, kind: Callable[[Any], Any] = lambda a: a
) -> Any:
    """What a function of a scenario's answers, as a ``kind``: ``list`` of one that yields.

    An exception of its own is Inconclusive, and names the function.
    """
    try:
        return kind(getattr(module, name)(*arguments))
    except HarnessError:
        raise
    except Exception as error:
        where = f"{module.__name__.split('.')[-2]}.{name}"
        raise Inconclusive(
            f"{where} cannot judge these records: {type(error).__name__}: {error}"
        ) from error


def _check_lane(records: Records, lane: str) -> None:
    """Ranks name a GPU and what it is driven by on its lane, and none on the other."""
    for start in records.of("start"):
        if any((name in start) != (lane == Lane.GPU) for name in ON_GPU):
            told = start.get("gpu", "no GPU")
            raise Inconclusive(f"rank {start['rank']} ran on {told}, on the {lane} lane")


def _check_machine(records: Records, machine: Mapping[str, Any]) -> None:
    """Ranks ran the Python and the torch that run.json says the machine has, on so many threads."""
    for start in records.of("start"):
        for name in ("python", "torch", "threads"):
            # torch itself may tell its build, 2.11.0+cu130, where it is installed as 2.11.0.
            ours, theirs = (str(v).partition("+")[0] for v in (start[name], machine.get(name)))
            if machine.get(name) is not None and ours != theirs:
                rank = start["rank"]
                raise Inconclusive(f"rank {rank} ran {name} {ours}, and run.json names {theirs}")


def _check_shims(records: Records, installed: Sequence[str]) -> None:
    """Ranks tell the uses of the shims that run.json lists."""
    for told in records.of("shims"):
        odd = set(told["uses"]) ^ set(installed)
        if odd:
            which = sorted(odd)[0]
            raise Inconclusive(f"rank {told['rank']}: its shims are not those of run.json: {which}")


def _check_upstream(folder: Path, records: Records, of: Identity, trial: Mapping[str, Any]) -> None:
    """Every rank ran the pinned code of the trial's own overlay, each file as it was made."""
    site, key = Path(trial["overlay"]["site"]), trial["overlay"]["key"]
    nothing = dict.fromkeys(records.ranks, digest({}))  # what is installed is no overlay
    made = nothing if key == INSTALLED else loaded_files.made(folder / of.launch, of)
    for rank in records.ranks:
        proof = records.one("upstream", rank)
        if proof is None:
            raise Inconclusive(f"rank {rank} did not say which upstream it ran")
        _check_modules(rank, proof, site, trial["pins"])
        _check_files(rank, proof, site, trial["files"])
        loaded = proof["loaded"]
        if loaded != made.get(rank):
            which = loaded_files.changed(folder.parent, loaded, made.get(rank))
            raise Inconclusive(
                f"overlay {key} is damaged: rank {rank} loaded {which} not as it was made; remove "
                f"it with 'python -m harness clean {key}'"
            )
        if key != INSTALLED:
            _check_loaded(rank, proof, site, loaded_files.files(folder.parent, loaded))


def _check_modules(rank: int, proof: Record, site: Path, pins: Mapping[str, str]) -> None:
    odd = sorted(set(proof["modules"]) - set(pins))
    if odd:
        raise Inconclusive(f"rank {rank} tells of {odd[0]}, which is not pinned")
    for name, version in pins.items():
        module = proof["modules"].get(name)
        if module is None or site not in Path(module["file"]).parents:
            where = module["file"] if module else "nowhere"
            raise Inconclusive(f"rank {rank} loaded {name} from {where}, not from its overlay")
        if module["version"] != version:
            raise Inconclusive(f"rank {rank} ran {name} {module['version']}, not {version}")


def _check_loaded(rank: int, proof: Record, site: Path, loaded: loaded_files.Files) -> None:
    """What a rank's list of loaded files has to name: the pinned packages, and the files with the
    bug, each with its hash. An empty list would agree with an overlay of any content."""
    modules = [Path(module["file"]).relative_to(site) for module in proof["modules"].values()]
    listed = {Path(file) for file in loaded}
    lacking = [m for m in modules if m not in listed and not any(m in f.parents for f in listed)]
    lacking += [Path(f) for f, seen in proof["files"].items() if loaded.get(f) != seen["sha256"]]
    if lacking:
        raise Inconclusive(f"rank {rank}: its list of loaded files has no {lacking[0]} as it ran")


def _check_files(rank: int, proof: Record, site: Path, files: Mapping[str, str]) -> None:
    odd = sorted(set(proof["files"]) - set(files))
    if odd:
        raise Inconclusive(f"rank {rank} tells of {odd[0]}, which is not watched")
    for file, expected in files.items():
        loaded = proof["files"].get(file)
        if loaded is None:
            raise Inconclusive(f"rank {rank} never loaded {file}, where the bug is")
        if Path(loaded["path"]) != site / file or loaded["sha256"] != expected:
            raise Inconclusive(f"rank {rank} ran another {file} than the one of its overlay")
