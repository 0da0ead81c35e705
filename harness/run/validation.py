"""Whether the records of a trial count.

A trial counts only if every launch ended by itself; if its files are from this launch; if each
rank wrote exactly its planned records; and if each rank ran the pinned code, with every loaded file
as the overlay was made. Otherwise the trial is inconclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.bugs import catalog
from harness.bugs.api.plan import BrokenPlan, Checklist, Plan, check_alike, wrong_facts
from harness.bugs.api.spec import Record, Records
from harness.bugs.pins import is_pinned
from harness.rank.exits import Exit, Identity, read_exit
from harness.rank.recorder import HARNESS_KINDS, complete_plan
from harness.rank.run_folder import BEGIN, BrokenRecords, params_of, position_of, read_records
from harness.system.errors import HarnessError, Inconclusive


def validated(run: Mapping[str, Any], folder: Path, variant: str, exits: list[Exit]) -> Records:
    """The records of the trial in ``folder``, validated. The exits of its launches are appended to
    ``exits``. Raises HarnessError with the reason if the trial does not count."""
    launches = {
        launch: _validated_launch(run, folder, Identity.of(run, variant, launch), exits)
        for launch in run["trials"][variant]["launches"]
    }
    return merged(launches, params_of(run, variant))


def merged(launches: Mapping[str, Records], params: Any) -> Records:
    """The records of a trial's launches in one, each with the name of its launch."""
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


def _validated_launch(
    run: Mapping[str, Any], folder: Path, identity: Identity, exits: list[Exit]
) -> Records:
    trial, launch_folder = run["trials"][identity.variant], folder / identity.launch
    exits.append(read_exit(launch_folder, identity))
    _check_exit(exits[-1])
    records = read_records(launch_folder, identity.world_size)
    _check_identities(records, identity)
    _check_plans(
        records, {n: planned(run, identity.variant, identity.launch, n) for n in records.ranks}
    )
    _check_machine(records, {**run["machine"], "threads": run["launch"].get("threads")})
    _check_upstream(records, trial)
    return records


def _check_exit(exit_: Exit) -> None:
    if exit_.survivors:
        raise Inconclusive(f"processes {exit_.survivors} could not be killed")
    if exit_.interrupted:
        raise Inconclusive("interrupted")
    if exit_.timed_out:
        raise Inconclusive(f"ended at its deadline after {exit_.seconds:.0f} s{_why(exit_)}")
    if exit_.failure and exit_.code:
        raise Inconclusive(f"rank {exit_.failure['rank']} failed first: {exit_.failure['message']}")
    if exit_.code:
        raise Inconclusive(f"torchrun left with exit code {exit_.code}{_why(exit_)}")


def _why(exit_: Exit) -> str:
    return f": {exit_.reason}" if exit_.reason else ""


def _check_identities(records: Records, identity: Identity) -> None:
    """Check that each rank's file is from this launch, and was written on one host."""
    for rank in records.ranks:
        begin = records.by_rank[rank][0]
        if begin["kind"] != BEGIN or wrong_facts(HARNESS_KINDS[BEGIN].facts_of(0), begin):
            raise BrokenRecords(f"rank {rank}: its first record does not identify its launch")
        difference = identity.unlike(begin)
        if difference:
            raise BrokenRecords(f"rank {rank}: its records are from {difference}")
        if begin["host"] != records.by_rank[0][0]["host"]:
            raise BrokenRecords(f"{BEGIN}: host differs between ranks 0 and {rank}")


def _check_plans(records: Records, plans: Mapping[int, Plan]) -> None:
    """Check that each rank wrote exactly its planned records, and that shared facts are equal."""
    for rank, plan in plans.items():
        try:
            checklist = Checklist(complete_plan(plan))
            for record in records.by_rank[rank]:
                checklist.check(record)
            checklist.close()
        except BrokenPlan as error:
            raise BrokenRecords(f"rank {rank}: {error}") from None
    try:
        check_alike({rank: complete_plan(plan) for rank, plan in plans.items()}, records.by_rank)
    except BrokenPlan as error:
        raise BrokenRecords(str(error)) from None


def planned(run: Mapping[str, Any], variant: str, launch: str, rank: int) -> Any:
    """The scenario's plan for a rank of a launch."""
    module = catalog.load(run["scenario"])
    return call(module, "plan", position_of(run, variant, launch, rank, params_of(run, variant)))


def call(
    module: ModuleType, name: str, *arguments: Any, kind: Callable[[Any], Any] = lambda a: a
) -> Any:
    """The result of a scenario's function, converted by ``kind``: ``list`` for a generator.

    An exception of the scenario's own code becomes Inconclusive, and names the function.
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


def _check_machine(records: Records, machine: Mapping[str, Any]) -> None:
    """Check that ranks ran the Python, the torch and the number of threads that run.json names."""
    for start in records.of("start"):
        for name in ("python", "torch", "threads"):
            # torch may add its build, 2.11.0+cu130, where it is installed as 2.11.0.
            ours, theirs = (str(v).partition("+")[0] for v in (start[name], machine.get(name)))
            if machine.get(name) is not None and ours != theirs:
                rank = start["rank"]
                raise Inconclusive(f"rank {rank} ran {name} {ours}, and run.json names {theirs}")


def _check_upstream(records: Records, trial: Mapping[str, Any]) -> None:
    """Check that each rank ran the pinned code of its overlay, with every file as it was made."""
    site, key = Path(trial["overlay"]["site"]), trial["overlay"]["key"]
    for rank in records.ranks:
        (upstream,) = records.of("upstream", rank)
        _check_modules(rank, upstream, site, trial["pins"])
        _check_files(rank, upstream, site, trial["files"])
        if upstream["changed"]:
            first, *others = upstream["changed"]
            files = f"{first}, one of {len(others) + 1}," if others else first
            raise Inconclusive(
                f"overlay {key} is damaged: rank {rank} loaded {files} not as it was made; remove "
                f"it with 'python -m harness clean {key}'"
            )


def _check_modules(rank: int, upstream: Record, site: Path, pins: Mapping[str, str]) -> None:
    for name, version in pins.items():
        module = upstream["modules"].get(name)
        if module is None or site not in Path(module["file"]).parents:
            where = module["file"] if module else "nowhere"
            raise Inconclusive(f"rank {rank} loaded {name} from {where}, not from its overlay")
        if not is_pinned(name, module["version"], version):
            raise Inconclusive(f"rank {rank} ran {name} {module['version']}, not {version}")


def _check_files(rank: int, upstream: Record, site: Path, files: Mapping[str, str]) -> None:
    for file, expected in files.items():
        loaded = upstream["files"].get(file)
        if loaded is None:
            raise Inconclusive(f"rank {rank} never loaded {file}, where the bug is")
        if Path(loaded["path"]) != site / file or loaded["sha256"] != expected:
            raise Inconclusive(f"rank {rank} ran another {file} than the one of its overlay")
