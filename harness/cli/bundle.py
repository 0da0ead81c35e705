"""make a folder with everything that a machine without a network needs to run scenarios

    BUNDLE/activate          source this there, as for a virtual environment
    BUNDLE/site.tar.xz       the harness and its dependencies, for that machine's Python; not torch
    BUNDLE/overlays.tar.xz   the overlays of all variants
    BUNDLE/bundle.json       its content and its commit
    BUNDLE/run               runs all its scenarios on GPUs: bash BUNDLE/run NAME

The machine provides Python and torch. The overlays are unpacked there once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.bugs import catalog, pins
from harness.bugs.api.spec import RELEASED, Defect, Lane, Scenario
from harness.cli import Arguments
from harness.releases import archive, overlay, resolution, uv
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

CONTENTS = "bundle.json"
OVERLAYS = "overlays.tar.xz"
SITE = "site.tar.xz"
OURS = ("harness", "scenarios", "configs", "loops", "tests", "conftest.py", "pyproject.toml")
"""What the bundle has of this checkout, without the folders of other scenarios."""

NEEDED = (
    *("hydra-core", "libcst", "packaging", "psutil", "pypi-simple", "pytest", "rich", "tomli"),
    "unidiff",
)
"""What a run needs. LibCST makes overlays of torch from that machine's torch; others need uv."""

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
    python3 -W ignore -m tarfile -e "$BUNDLE/site.tar.xz" "$aside" &&
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
python3 -m harness run scenario=all variant=all lane=gpu "runs=runs-$part" "$@"
code=$?
python3 -m harness evidence "runs-$part"/*/ "$name" --out "evidence-$part.jsonl"
exit $code
"""

Edition = tuple[pins.Stack, tuple[Defect, ...]]
"""What one overlay is made from."""

Overlays = dict[str, tuple[pins.Stack, Overlay]]
"""Overlays that are in use, with their releases, by key."""


@dataclass(frozen=True)
class Request:
    """For which machine a bundle is: it has it in its bundle.json."""

    source: Mapping[str, Any]
    python: str
    platform: str


def _parser() -> Arguments:
    parser = Arguments(__name__)
    add = parser.add_argument
    add("scenario", nargs="*")
    add("--all", action="store_true", help="all scenarios that use a GPU")
    add("--out", type=Path, required=True, help="the new folder")
    add("--python", metavar="3.12", help="the Python of that machine (default: this one)")
    platform = "the platform of that machine, as uv names it"
    add("--platform", default="x86_64-manylinux_2_28", help=platform)
    return parser


def main(arguments: list[str]) -> int:
    """Make the folder, completely or not at all, and print the line that uses it."""
    options = _parser().parse_args(arguments)
    if options.all == bool(options.scenario):
        raise UserError("name the scenarios, or write --all")
    # The data of scenarios without a GPU would fill several parts for nothing.
    of_gpus = (name for name in catalog.sound() if Lane.GPU in catalog.scenario(name).lanes)
    scenarios = list(of_gpus) if options.all else options.scenario
    out = options.out
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder: name a new one")
    refuse_unless_creatable(out)
    python = options.python or pins.here()[0]
    if python not in PYTHONS:
        raise UserError(unknown("Python", python, PYTHONS))
    pins.platform_tag(options.platform)  # refuses an unknown one
    source = machine.source()  # before this creates files
    request = Request(source, python, options.platform)
    with _borrowed(scenarios, request, lenient=options.all) as overlays:
        if not overlays:
            raise UserError("no scenario can be included")
        size = _make(request, overlays, out)
        borrowed = {key: stack for lent in overlays.values() for key, (stack, _) in lent.items()}
    console, megabytes = terminal(), f"{size / 1e6:.0f} MB"
    console.print(f"{out}: {count(len(borrowed), 'overlay')} for Python {python}, {megabytes}")
    for stack in dict.fromkeys(str(stack) for stack in borrowed.values() if stack.pins):
        console.print(f"  {stack}")
    use = f". {out.name}/activate && python3 -m harness run scenario=NAME lane=gpu"
    console.print(f"on the other machine:  {use}")
    return ExitCode.AS_EXPECTED


def _editions(scenario: Scenario, request: Request) -> Iterator[Edition]:
    """The overlays of every variant of a scenario, including ``released``."""
    tag = pins.platform_tag(request.platform)
    for variant in (*scenario.variants, RELEASED):
        chosen = pins.complete(scenario, scenario.pins_of(variant))
        if pins.TORCH in chosen:
            continue  # that machine makes it, from its own torch
        stack = resolution.stack(
            scenario, chosen, cache_folder(), python=request.python, platform=tag
        )
        yield stack, scenario.variant(variant).defects


@contextmanager
def _borrowed(
    scenarios: Sequence[str], request: Request, *, lenient: bool
) -> Iterator[dict[str, Overlays]]:
    """The overlays of each scenario, borrowed; several are built at the same time."""
    editions: dict[str, list[Edition]] = {}
    for name in scenarios:
        try:
            editions[name] = list(_editions(catalog.scenario(name), request))
        except Unsupported as error:
            _leave_out(name, error, lenient)
    with ExitStack() as leases, overlay.builders() as pool, Progress(terminal()) as progress:

        def lend(stack: pins.Stack, defects: tuple[Defect, ...]) -> Overlay:
            return leases.enter_context(overlay.borrow(stack, defects, cache_folder()))

        different = {overlay.key(*edition): edition for edition in chain(*editions.values())}
        loans = {key: pool.submit(lend, *edition) for key, edition in different.items()}
        overlays: dict[str, Overlays] = {}
        for name, several in editions.items():
            overlays[name] = {}
            try:
                for stack, defects in several:
                    key = overlay.key(stack, defects)
                    overlays[name][key] = stack, loans[key].result()
                    ready = sum(loan.done() for loan in loans.values())
                    progress.tally(f"{ready} of {count(len(loans), 'overlay')}")
            except Unsupported as error:
                del overlays[name]
                _leave_out(name, error, lenient)
        yield overlays


def _leave_out(name: str, error: HarnessError, lenient: bool) -> None:
    """Say that a scenario is not included. Raises the error for one that was asked for by name."""
    if not lenient:
        raise error
    terminal().print(f"not included: {name}: {error}")


def _make(request: Request, overlays: Mapping[str, Overlays], out: Path) -> int:
    """Make the bundle of these scenarios; returns its bytes."""
    scenarios = list(overlays)
    borrowed = {key: lent for overlay in overlays.values() for key, lent in overlay.items()}
    contents = asdict(request) | {
        "scenarios": scenarios,
        "overlays": {key: stack.to_json() for key, (stack, _) in borrowed.items()},
    }
    with writing(out, "--out"), folder_whole(out) as folder:
        write_whole(folder / "activate", ACTIVATE)
        write_whole(folder / "run", RUN)
        write_whole(folder / CONTENTS, json.dumps(contents, indent=2) + "\n")
        files = {f"site/{CONTENTS}": folder / CONTENTS}
        others = {catalog.folder(name) for name in catalog.names() if name not in scenarios}
        for path in chain.from_iterable((ROOT / name, *(ROOT / name).rglob("*")) for name in OURS):
            if "__pycache__" not in path.parts and others.isdisjoint(path.parents):
                files[f"site/{path.relative_to(ROOT)}"] = path
        with TemporaryDirectory(dir=folder) as needed:
            _install_needed(request, Path(needed))
            files |= {f"site/{path.relative_to(needed)}": path for path in Path(needed).rglob("*")}
            archives.pack(folder / SITE, files)
        archive.write(folder / OVERLAYS, borrowed, cache_folder())
    return sum(path.stat().st_size for path in out.iterdir())


def _install_needed(request: Request, site: Path) -> None:
    process = uv.execute(
        [
            *("pip", "install", "--quiet", "--target", str(site.absolute())),
            *("--python-version", request.python, "--python-platform", request.platform),
            *("--only-binary", ":all:", "--no-binary", "antlr4-python3-runtime"),
            *NEEDED,
        ]
    )
    if process.returncode:
        raise Inconclusive(
            f"cannot download the harness's dependencies: {' '.join(process.stderr.split())}"
        )


def unpack(bundle: Path, cache: Path) -> None:
    """Unpack the overlays of a bundle into the cache and compile them; existing ones are kept.

    Raises UserError if ``bundle`` is not a bundle, and Inconclusive if its content is refused.
    """
    try:
        keys = list(json.loads((bundle / CONTENTS).read_text(encoding="utf-8"))["overlays"])
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{bundle} is not a bundle: it has no valid {CONTENTS}") from None
    if not all((cache / "overlays" / key).exists() for key in keys):  # it may be read-only
        archive.unpack(bundle / OVERLAYS, keys, cache)


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), cache_folder())
    except HarnessError as refusal:
        warn(str(refusal))
        sys.exit(refusal.exit_code)
