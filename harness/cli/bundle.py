"""make a folder with everything that a machine without a network needs to run scenarios

    BUNDLE/activate          source this there, as for a virtual environment
    BUNDLE/site.tar.xz       the harness and its dependencies, for that machine's Python; not torch
    BUNDLE/overlays.tar.xz   the overlays of all variants
    BUNDLE/bundle.json       its content and its commit
    BUNDLE/run               runs all its scenarios on GPUs: bash BUNDLE/run NAME

The machine provides Python and torch. The overlays are unpacked there once.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, product
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

from harness.bugs import catalog, pins
from harness.bugs.api.spec import RELEASED, Defect, Lane, Scenario
from harness.cli import Arguments, _parts, pin
from harness.releases import archive, overlay, resolution, uv
from harness.releases.edits import DefectError
from harness.releases.locks import PYTHONS
from harness.releases.overlay import Overlay
from harness.system import archives, machine
from harness.system.errors import (
    ExitCode,
    HarnessError,
    Inconclusive,
    Unsupported,
    UserError,
    unknown,
)
from harness.system.files import ROOT, folder_whole, refuse_unless_creatable, write_whole, writing
from harness.system.machine import cache_folder
from harness.system.terminal import Progress, terminal
from harness.system.text import count, warn

FORMAT = 4
"""The format of bundles; others are refused."""

ARCHIVE = "overlays.tar.xz"
SITE = "site.tar.xz"
OURS = ("harness", "scenarios", "configs", "loops", "tests", "conftest.py", "pyproject.toml")
NEEDED = ("hydra-core", "packaging", "psutil", "pypi-simple", "pytest", "rich", "unidiff")
"""What a run needs. Making overlays needs more: uv and LibCST."""

FOR_TORCH = ("libcst",)
"""What a scenario of torch needs: its overlays are made on the other machine, from its torch."""

ACTIVATE = """\
# Source this on the other machine: . BUNDLE/activate
BUNDLE=$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)
PLACE=$BUNDLE
if [ ! -d "$PLACE/site" ] && [ ! -w "$PLACE" ]; then  # read-only: unpack beside our cache
    PLACE=${XDG_CACHE_HOME:-$HOME/.cache}/distributed-bugs/bundles/$(cksum < "$BUNDLE/bundle.json" |
        tr ' ' -)
fi
if [ ! -d "$PLACE/site" ]; then
    aside=$PLACE/.unpacked.$(uname -n).$$
    python3 -W ignore "$BUNDLE/archives.py" "$BUNDLE/site.tar.xz" "$aside" &&
        { mv -T "$aside/site" "$PLACE/site" 2> /dev/null || [ -d "$PLACE/site" ]; }
    rm -rf "$aside"
fi
export PYTHONPATH="$PLACE/site${PYTHONPATH:+:$PYTHONPATH}"
export HARNESS_CACHE="${HARNESS_CACHE:-$PLACE/cache}"
python3 -W ignore -m harness.cli.bundle "$BUNDLE"
"""


RUN = """\
# bash BUNDLE/run NAME [OVERRIDE...] runs all variants of its scenarios on GPUs, and keeps their
# trials under this name, such as h200x2, in one file in the folder where it was started.
name=${1:?a name of these runs, such as h200x2}
shift
BUNDLE=$(cd "$(dirname "$0")" && pwd)
part=$(basename "$BUNDLE")
. "$BUNDLE/activate" || exit
place=$PWD
mkdir -p "$place/runs-$part" && cd "$place/runs-$part" || exit
python3 -m harness run scenario=all variant=all lane=gpu runs=. "$@"
code=$?
python3 -m harness evidence ./*/ "$name" --out "$place/evidence-$part.jsonl"
exit $code
"""

Overlays = dict[str, tuple[pins.Stack, Overlay]]
"""Overlays that are in use, with their releases, by key."""


def _parser() -> Arguments:
    parser = Arguments(__name__)
    add = parser.add_argument
    add("scenario", nargs="*")
    add("--all", action="store_true", help="all scenarios that use a GPU")
    parts = (
        "bundles of at most this size, with the scenarios that share most files; a further call "
    )
    add("--parts", type=_size, metavar="60M", help=f"{parts}keeps those that are there")
    add("--out", type=Path, required=True, help="the new folder")
    add("--python", metavar="3.12", help="the Python of that machine (default: this one)")
    platform = "the platform of that machine, as uv names it"
    add("--platform", default="x86_64-manylinux_2_28", help=platform)
    form, about = "NAME=VERSION[,VERSION...]", "further releases to include; repeatable"
    add("--pins", action="append", default=[], metavar=form, help=about)
    return parser


def _size(text: str) -> int:
    """The bytes of ``60M`` or ``2G``."""
    match = re.fullmatch(r"([0-9]+)([MG])", text)
    if not match or int(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text} is no size: write 60M or 2G")
    return int(match[1]) * {"M": 10**6, "G": 10**9}[match[2]]


@dataclass(frozen=True)
class Request:
    """What bundles contain, and for which machine."""

    releases: Mapping[str, Sequence[str]]
    python: str
    platform: str
    source: Mapping[str, Any]
    cache: Path
    lenient: bool
    """Whether a scenario that this Python cannot run, or that is too large for a part, is left
    out, and not refused."""


def main(arguments: list[str]) -> int:
    """Make the folder, completely or not at all, and print the line that uses it."""
    options = _parser().parse_args(arguments)
    if options.all == bool(options.scenario):
        raise UserError("name the scenarios, or write --all")
    scenarios = _of_gpus() if options.all else options.scenario
    releases = {name: versions.split(",") for name, versions in map(pin, options.pins)}
    out = options.out
    if out.exists() and not (out.is_dir() and (options.parts or not any(out.iterdir()))):
        raise UserError(f"{out} is not an empty folder: name a new one")
    refuse_unless_creatable(out)
    python = options.python or pins.here()[0]
    if python not in PYTHONS:
        raise UserError(unknown("Python", python, PYTHONS))
    pins.platform_tag(options.platform)  # refuses an unknown one
    source = machine.source()  # before this creates files
    _check_releases(scenarios, releases)
    request = Request(
        releases, python, options.platform, source, cache_folder(), lenient=options.all
    )
    if options.parts:
        _make_parts(scenarios, request, out, options.parts)
    else:
        with _overlays(scenarios, request) as overlays:
            everything = _together(overlays, overlays)
            _make(list(overlays), request, everything, out)
        _summarize(out, everything, python)
    return ExitCode.AS_EXPECTED


def _of_gpus() -> list[str]:
    """The scenarios that run on GPUs. The data of the others would fill several parts in vain."""
    return [name for name in catalog.sound() if Lane.GPU in catalog.scenario(name).lanes]


@contextmanager
def _overlays(scenarios: Sequence[str], request: Request) -> Iterator[dict[str, Overlays]]:
    """The overlays of each scenario, borrowed; several are built at the same time."""
    choices: dict[str, list[tuple[pins.Stack, tuple[Defect, ...]]]] = {}
    for name in scenarios:
        try:
            choices[name] = list(_stacks(name, request))
        except Unsupported as error:
            _leave_out(name, error, request)
    with ExitStack() as leases, overlay.builders() as pool, Progress(terminal()) as progress:

        def lend(stack: pins.Stack, defects: tuple[Defect, ...]) -> Overlay:
            return leases.enter_context(overlay.borrow(stack, defects, request.cache))

        loans: dict[str, Future[Overlay]] = {}  # variants and scenarios share overlays
        for stack, defects in chain.from_iterable(choices.values()):
            if (key := overlay.key(stack, defects)) not in loans:
                loans[key] = pool.submit(lend, stack, defects)
        borrowed: dict[str, Overlays] = {name: {} for name in choices}
        awaited: set[str] = set()
        for name, (stack, defects) in (
            (name, choice) for name, stacks in choices.items() for choice in stacks
        ):
            if name not in borrowed:
                continue  # left out
            awaited.add(key := overlay.key(stack, defects))
            try:
                lent = loans[key].result()
            except Unsupported as error:
                _leave_out(name, error, request)
                del borrowed[name]
                continue
            except DefectError as error:
                if not _is_extra(stack, request.releases):
                    raise
                terminal().print(f"not included, a release of --pins: {error}")
                continue
            borrowed[name][lent.key] = (stack, lent)
            progress.tally(f"{len(awaited)} of {count(len(loans), 'overlay')}")
        yield borrowed


def _leave_out(name: str, error: HarnessError, request: Request) -> None:
    """Say that a scenario is not included. Raises the error for one that was asked for by name."""
    if not request.lenient:
        raise error
    terminal().print(f"not included: {name}: {error}")


def _together(overlays: Mapping[str, Overlays], scenarios: Iterable[str]) -> Overlays:
    return {key: lent for name in scenarios for key, lent in overlays[name].items()}


def _make_parts(scenarios: Sequence[str], request: Request, out: Path, limit: int) -> None:
    """Make the parts that are not there yet, and print the line that runs one."""
    with writing(out, "--out"):
        out.mkdir(parents=True, exist_ok=True)
    finished = _finished(out, request)
    folders = (out / f"part-{number:02}" for number in numbers_from(1))
    waiting = [name for name in scenarios if not any(name in part for part in finished.values())]
    with _overlays(waiting, request) as overlays:
        files = {
            name: _parts.contents(lent for _, lent in lendings.values())
            for name, lendings in overlays.items()
        }
        folder = next(folder for folder in folders if folder not in finished)

        def pack(part: Sequence[str]) -> int:
            terminal().print(f"... {folder}: {len(part)} scenarios")
            return _make(part, request, _together(overlays, part), folder, limit)

        leave_out = partial(_leave_out, request=request)
        for part in _parts.divide(files, limit, pack, leave_out):
            finished[folder] = part
            folder = next(folder for folder in folders if folder not in finished)
    if not finished:
        raise UserError("--parts is too small: each scenario alone needs more")
    for folder, part in sorted(finished.items()):
        terminal().print(f"{folder}: {count(len(part), 'scenario')}, {_bytes(folder) / 1e6:.0f} MB")
    terminal().print(f"on the other machine:  bash {next(iter(sorted(finished)))}/run NAME")


def _finished(out: Path, request: Request) -> dict[Path, tuple[str, ...]]:
    """The parts that are there, with their scenarios. Raises UserError if one is of another
    request."""
    finished = {}
    for file in sorted(out.glob("*/bundle.json")):
        contents = json.loads(file.read_text(encoding="utf-8"))
        if any(contents.get(name) != value for name, value in _of(request).items()):
            raise UserError(f"{file.parent} is of another commit or Python: name a new folder")
        finished[file.parent] = tuple(contents["scenarios"])
    return finished


def _of(request: Request) -> dict[str, Any]:
    """What all parts of a request have in their bundle.json."""
    return {
        "format": FORMAT,
        "source": request.source,
        "python": request.python,
        "platform": request.platform,
        "pins": {name: list(versions) for name, versions in request.releases.items()},
    }


def _make(
    scenarios: Sequence[str],
    request: Request,
    overlays: Overlays,
    out: Path,
    limit: float = math.inf,
) -> int:
    """Make a bundle, unless it is larger than ``limit``; returns its bytes."""
    contents = _of(request) | {
        "scenarios": list(scenarios),
        "overlays": {key: stack.to_json() for key, (stack, _) in overlays.items()},
    }
    with suppress(_TooLarge), writing(out, "--out"), folder_whole(out) as aside:
        _fill(aside, request.cache, overlays, contents)
        size = _bytes(aside)
        if size > limit:
            raise _TooLarge
    return size


class _TooLarge(Exception):
    """A bundle is larger than it may be, and is deleted."""


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _check_releases(scenarios: Sequence[str], releases: Mapping[str, Sequence[str]]) -> None:
    packages = {pin for name in scenarios for pin in catalog.scenario(name).pins}
    for name in releases:
        if name not in packages:
            raise UserError(unknown("pin of these scenarios", name, sorted(packages)))
    choices = [each for name in scenarios for each in _choices(catalog.scenario(name), releases)]
    for name, versions in releases.items():
        for version in versions:
            if not any(choice.get(name) == version for choice in choices):
                about = (catalog.scenario(scenario).releases for scenario in scenarios)
                raise UserError(f"{name} {version}: these scenarios test {', '.join(about)} only")


def _is_extra(stack: pins.Stack, releases: Mapping[str, Sequence[str]]) -> bool:
    return any(stack.pins.get(name) in versions for name, versions in releases.items())


def _stacks(name: str, request: Request) -> Iterator[tuple[pins.Stack, tuple[Defect, ...]]]:
    """The stack and the defects of every variant of a scenario, including ``released``."""
    scenario, tag = catalog.scenario(name), pins.platform_tag(request.platform)
    for choice in _choices(scenario, request.releases):
        for variant in (*scenario.variants, RELEASED):
            chosen = pins.complete(scenario, {**choice, **scenario.pins_of(variant)})
            if pins.TORCH in chosen:
                continue  # that machine makes it, from its own torch
            stack = resolution.stack(
                scenario, chosen, request.cache, python=request.python, platform=tag
            )
            yield stack, scenario.variant(variant).defects


def _choices(scenario: Scenario, releases: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """No pins, and each combination of ``releases`` that the scenario can test."""
    axes = {name: versions for name, versions in releases.items() if name in scenario.pins}
    yield {}
    for combination in product(*axes.values()) if axes else ():
        choice = dict(zip(axes, combination, strict=True))
        if pins.covers(scenario, {**scenario.pins, **choice}):
            yield choice


def _fill(folder: Path, cache: Path, overlays: Overlays, contents: Mapping[str, Any]) -> None:
    site = folder / "site"
    of_torch = any(pins.TORCH in catalog.scenario(name).pins for name in contents["scenarios"])
    needed = (*NEEDED, *(FOR_TORCH if of_torch else ()))
    _install_needed(needed, site, contents["python"], contents["platform"])
    others = {catalog.folder(name) for name in catalog.names()}
    others -= {catalog.folder(name) for name in contents["scenarios"]}

    def left_out(folder: str, names: list[str]) -> set[str]:
        return {name for name in names if name == "__pycache__" or Path(folder, name) in others}

    for name in OURS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, site / name, ignore=left_out)
        elif source.exists():
            shutil.copy2(source, site / name)
    write_whole(site / "bundle.json", json.dumps(contents, indent=2) + "\n")
    shutil.copy2(site / "bundle.json", folder / "bundle.json")
    write_whole(folder / "activate", ACTIVATE)
    write_whole(folder / "run", RUN)
    shutil.copy2(archives.__file__, folder / "archives.py")
    files = [path for path in site.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    files.sort(key=lambda path: (path.suffix, path))  # similar files together compress better
    archive.pack(folder / SITE, ((f"site/{path.relative_to(site)}", path) for path in files))
    shutil.rmtree(site)
    archive.write(folder / ARCHIVE, overlays, cache)


def _install_needed(needed: Sequence[str], site: Path, python: str, platform: str) -> None:
    process = uv.execute(
        [
            *("pip", "install", "--quiet", "--target", str(site.absolute())),
            *("--python-version", python, "--python-platform", platform),
            *("--only-binary", ":all:", "--no-binary", "antlr4-python3-runtime"),
            *needed,
        ]
    )
    if process.returncode:
        raise Inconclusive(
            f"cannot download the harness's dependencies: {' '.join(process.stderr.split())}"
        )


def _summarize(out: Path, overlays: Overlays, python: str) -> None:
    console = terminal()
    size = _bytes(out) / 1e6
    console.print(f"{out}: {count(len(overlays), 'overlay')} for Python {python}, {size:.0f} MB")
    for stack in dict.fromkeys(str(stack) for stack, _ in overlays.values() if stack.pins):
        console.print(f"  {stack}")
    console.print(
        f"on the other machine:  . {out.name}/activate && "
        "python3 -m harness run scenario=NAME lane=gpu"
    )


def unpack(bundle: Path, cache: Path) -> None:
    """Unpack the overlays of a bundle into the cache and compile them; existing ones are kept.

    Raises UserError if ``bundle`` is not a bundle, and Inconclusive if its content is refused.
    """
    keys = _keys(bundle)
    if all((cache / "overlays" / key).exists() for key in keys):
        return  # the cache may be read-only
    try:
        with writing(cache, "HARNESS_CACHE"):
            archive.unpack(bundle / ARCHIVE, keys, cache)
    except archive.InvalidArchive as refusal:
        raise Inconclusive(f"{bundle} is refused: {refusal}; make it again") from None


def _keys(bundle: Path) -> list[str]:
    try:
        contents = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
        form, keys = contents.get("format"), list(contents["overlays"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{bundle} is not a bundle: it has no valid bundle.json") from None
    if form != FORMAT:
        raise UserError(f"{bundle} is a bundle of another version: make it again")
    if not all(re.fullmatch(r"[0-9a-f]{20}", key) for key in keys):
        raise UserError(
            f"{bundle} is not a bundle: its bundle.json names something that is not an overlay"
        )
    return keys


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), cache_folder())
    except HarnessError as refusal:
        warn(str(refusal))
        sys.exit(refusal.exit_code)
