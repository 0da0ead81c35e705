"""resolve the dependencies of a scenario's overlays and write its lock files

    python -m harness lock bf16_clip        # or without a name: of every scenario

A scenario's folder locks has one file for each combination of releases that its variants run on.
Files that no variant needs any more are deleted. Needs the package index.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.bugs import catalog, pins
from harness.bugs.pins import Stack
from harness.cli import Arguments
from harness.releases import locks, releases, resolution
from harness.system.errors import ExitCode, Unsupported
from harness.system.files import write_all
from harness.system.machine import cache_folder
from harness.system.terminal import terminal


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="*", help="default: every scenario")
    options = parser.parse_args(arguments)
    for name in options.scenario:
        catalog.load(name)
    for name in options.scenario or catalog.sound():
        write(name)
    return ExitCode.AS_EXPECTED


def write(name: str) -> None:
    """Write the lock files of one scenario: all of them, or none."""
    folder, console = catalog.folder(name) / "locks", terminal()
    texts = {}
    for stack in stacks(name):
        path = locks.file(folder, stack.pins)
        by_python = resolved(stack)
        texts[path] = locks.text(str(stack), stack.date, name, by_python)
        console.print(f"{name}: {path.name}, for Python {', '.join(by_python)}")
    if texts:
        folder.mkdir(parents=True, exist_ok=True)
        write_all(texts)
    for old in set(folder.glob("*.txt")) - set(texts):
        old.unlink()


def stacks(name: str) -> Iterator[Stack]:
    """The stacks that the variants of a scenario run on, each once."""
    scenario = catalog.scenario(name)
    earlier_pins: list[Mapping[str, str]] = []
    for variant in scenario.variants:
        chosen = pins.complete(scenario, scenario.pins_of(variant))
        if chosen and chosen not in earlier_pins:
            earlier_pins.append(chosen)
            day = releases.day_of(scenario, chosen, pins.here()[0], cache_folder())
            yield Stack(chosen, day, *pins.here())


def resolved(stack: Stack) -> dict[str, dict[str, str]]:
    """The versions that a stack resolves to, by Python, without Pythons that have no wheels.

    A Python that is newer than the stack's day is resolved for its own first day instead.
    """
    by_python = {}
    for python in locks.PYTHONS:
        for day in dict.fromkeys((stack.date, max(stack.date, releases.first_day(python)))):
            try:
                lock = resolution.lock(Stack(stack.pins, day, python, locks.PLATFORM))
            except Unsupported:
                continue
            by_python[python] = locks.versions(lock)
            break
    if not by_python:
        raise Unsupported(f"{stack} cannot be installed for Python {', '.join(locks.PYTHONS)}")
    return by_python
