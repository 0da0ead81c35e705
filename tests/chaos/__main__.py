"""The command line of chaos: makes faults, and prints a line for each and a table."""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from harness.system.machine import cache_folder
from tests.chaos.case import Case, Result, finish
from tests.chaos.kinds import KINDS, Kind
from tests.overlays import lent
from tests.sandbox import Sandbox

SCENARIOS = (
    "sampler_shards",
    "streaming_map_resume",
    "warmup_first_step",
    "tied_grad_reduce",
    "bf16_clip",
)
"""The quickest ones. Their overlays are made first, so that the faults need no package index."""

printing = threading.Lock()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="the same seed makes the same faults")
    parser.add_argument("--out", type=Path, required=True, help="a new folder for the results")
    parser.add_argument("--jobs", type=int, default=2, help="the number of faults at once")
    parser.add_argument("--kind", action="append", help="make only this kind; repeatable")
    parser.add_argument(
        "--scenario", action="append", choices=SCENARIOS, help="only this scenario; repeatable"
    )
    options = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if not options.kind or kind.name in options.kind]
    if not kinds:
        parser.error(f"no such kind. Choices: {', '.join(kind.name for kind in KINDS)}.")
    _have_commands_hear_signals()
    options.out.mkdir(parents=True)
    drawn = list(draw(kinds, options.faults, options.seed, options.scenario or SCENARIOS))
    for scenario in {scenario for _, _, scenario, _ in drawn}:
        with lent(scenario, "buggy", "fixed"):
            pass
    with ThreadPoolExecutor(options.jobs) as pool:
        faults = list(pool.map(lambda each: make(options.out.absolute(), *each), drawn))
    (options.out / "faults.json").write_text(
        json.dumps([asdict(o) for o in faults], indent=1) + "\n"
    )
    print_table(faults)
    return 1 if any(fault.wrong for fault in faults) else 0


def _have_commands_hear_signals() -> None:
    # A process in the background of a shell ignores SIGINT, one started by nohup SIGHUP, and the
    # commands would inherit that. They do not inherit a handler.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def draw(
    kinds: Sequence[Kind], faults: int, seed: int, scenarios: Sequence[str] = SCENARIOS
) -> Iterator[tuple[int, Kind, str, int]]:
    """Number, kind, scenario and seed of each fault: all kinds come before one is repeated."""
    dice = random.Random(seed)
    for number in range(faults):
        if number % len(kinds) == 0:
            order = dice.sample(kinds, len(kinds))
        yield number, order[number % len(kinds)], dice.choice(scenarios), dice.getrandbits(32)


def make(out: Path, number: int, kind: Kind, scenario: str, seed: int) -> Result:
    """Make one fault and check its result."""
    folder = out / f"{number:03d}"
    folder.mkdir()
    sandbox = Sandbox.under(folder, cache_folder())
    for name in ("scenarios", "configs"):  # a user's own folders, which must not be imported
        (sandbox.cwd / name).mkdir()
        (sandbox.cwd / name / "__init__.py").write_text("raise SystemExit('not ours')\n")
    case = Case(number, kind.name, scenario, sandbox, random.Random(seed))
    try:
        kind.disturb(case)
        result = finish(case, kind.codes)
    finally:
        sandbox.end()
    summary = f"{result.code} {result.outcome}{' (too late)' if result.late else ''}"
    say(
        f"{number:3} {kind.name}, {scenario}: {summary}", *(f"    WRONG: {w}" for w in result.wrong)
    )
    if not result.wrong:
        shutil.rmtree(folder)
    return result


def say(*lines: str) -> None:
    with printing:
        print(*lines, sep="\n", flush=True)


def print_table(faults: Sequence[Result]) -> None:
    counts = Counter((o.kind, str(o.code), o.outcome, "WRONG" if o.wrong else "") for o in faults)
    width = max((len(kind) for kind, *_ in counts), default=0)
    print(f"\n{'kind':<{width}}  code  count  outcome")
    for (kind, code, outcome, mark), count in sorted(counts.items()):
        print(f"{kind:<{width}}  {code:>4}  {count:>5}  {outcome} {mark}".rstrip())
    print(f"{len(faults)} faults, {sum(bool(o.wrong) for o in faults)} not as documented")


if __name__ == "__main__":
    sys.exit(main())
