"""Runs probe on upgrades of the catalogue's packages, and reports which ones it tells.

    python -m tests.probe.upgrades
    python -m tests.probe.upgrades trainer_gas_twice zero2_micro_batches_lost

From the right releases to those with the bug, each upgrade to a bug that a loop of ours shows on
several ranks or micro-batches must be told. Upgrades that change nothing in a training must not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from harness.bugs import catalog, pins
from harness.run.server_pool import Pool
from harness.system.errors import HarnessError
from harness.training.probe import signatures
from harness.training.probe.layouts import ACCUMULATION, AGAINST, BOTH, RANKS
from harness.training.probe.prober import Loop, Prober
from tests.overlays import lent, lent_packages

DIVIDED = {RANKS, ACCUMULATION, BOTH}

TRAINER, ACCELERATED, DDP = Loop("trainer.py"), Loop("accelerated.py"), Loop("lightning_module.py")
Releases = dict[str, str]

NOTHING: tuple[tuple[Loop, Releases, Releases, Releases], ...] = (
    (TRAINER, {"transformers": "4.57.3"}, {"transformers": "4.57.6"}, {"accelerate": "1.12.0"}),
    (TRAINER, {"transformers": "4.56.1"}, {"transformers": "4.56.2"}, {"accelerate": "1.10.1"}),
    (TRAINER, {"transformers": "4.53.2"}, {"transformers": "4.53.3"}, {"accelerate": "1.8.1"}),
    (TRAINER, {"accelerate": "1.10.0"}, {"accelerate": "1.10.1"}, {"transformers": "4.57.6"}),
    (ACCELERATED, {"accelerate": "1.8.0"}, {"accelerate": "1.8.1"}, {}),
    (ACCELERATED, {"accelerate": "1.10.0"}, {"accelerate": "1.10.1"}, {}),
    (ACCELERATED, {"accelerate": "1.5.1"}, {"accelerate": "1.5.2"}, {}),
    (DDP, {"lightning": "2.5.5"}, {"lightning": "2.5.6"}, {}),
    (DDP, {"lightning": "2.5.2"}, {"lightning": "2.5.3"}, {}),
    (DDP, {"lightning": "2.4.0"}, {"lightning": "2.5.0"}, {}),
)
"""Loops, what changes from which release to which, and what stays."""


@dataclass(frozen=True)
class Upgrade:
    name: str
    loop: Loop
    """With the layouts to compare."""
    sites: tuple[Path, Path]
    changes: bool
    """Whether it must be told."""


def main(names: list[str]) -> int:
    mistakes = 0
    print("| upgrade | loop | told | first difference | s |\n| --- | --- | --- | --- | --- |")
    with ExitStack() as loans, Pool() as pool:
        for upgrade in upgrades(names, loans):
            began = time.monotonic()
            settings = replace(upgrade.loop.settings(), against="the other")
            try:
                answers = Prober(pool, *upgrade.sites).probe(upgrade.loop.target(), settings)
                others = [one for one in answers.layouts if one.layout.kind == AGAINST]
                before = {
                    (one.layout.world, one.layout.k)
                    for one in answers.layouts
                    if one.broken and one not in others
                }  # the first environment has a fault there, too
                broken = [
                    one
                    for one in others
                    if one.broken and (one.layout.world, one.layout.k) not in before
                ]
                answer = "yes" if broken else "no"
                cause = next((one.broken[0] for one in broken), None)
                difference = f"{cause.relation}: {cause.text}" if cause else ""
                if silent := [one.no_answer for one in others if one.no_answer]:
                    answer, difference = "no answer", silent[0]
            except HarnessError as error:
                answer, difference = "no answer", str(error)
            mistakes += answer != ("yes" if upgrade.changes else "no")
            seconds = time.monotonic() - began
            line = " ".join(difference.split())[:110]
            print(
                f"| {upgrade.name} | {upgrade.loop.name} | {answer} | {line} | {seconds:.0f} |",
                flush=True,
            )
    print(f"{mistakes} not as expected")
    return int(mistakes > 0)


def upgrades(names: list[str], loans: ExitStack) -> Iterator[Upgrade]:
    """The upgrades to bugs, and those that change nothing. ``loans`` keep their overlays."""
    for name, loop, broken in broken_loops(names):
        if layouts := tuple(sorted(DIVIDED & broken)):
            sides = loans.enter_context(lent(name, "fixed", "buggy"))
            sites = sides["fixed"].site, sides["buggy"].site
            yield Upgrade(name, replace(loop, layouts=layouts), sites, True)
    today = date.today().isoformat()
    for loop, first, second, both in NOTHING if not names else ():
        before, after = (
            loans.enter_context(lent_packages(today, **releases, **both)).site
            for releases in (first, second)
        )
        title = f"{pins.describe(first)} to {next(iter(second.values()))}"
        yield Upgrade(title, replace(loop, layouts=(BOTH,)), (before, after), changes=False)


def broken_loops(names: list[str]) -> Iterator[tuple[str, Loop, set[str]]]:
    """The bugs that a loop of ours shows on a CPU: the loop, and the layouts that it breaks."""
    for name in names or catalog.sound():
        signature = signatures.read(catalog.folder(name))
        if signature is None or signature.loop is None or signature.loop.on_gpus:
            continue
        if "buggy" in signature.recorded:
            shown = signature.recorded["buggy"].shown
            yield name, signature.loop, {one.layout for one in shown if not one.note}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
