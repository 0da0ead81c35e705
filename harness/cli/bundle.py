"""make a folder with everything that a machine without a network needs to run scenarios

    BUNDLE/activate          source this there, as for a virtual environment
    BUNDLE/site.tar.xz       the harness and its dependencies, for that machine's Python; not torch
    BUNDLE/overlays.tar.xz   the overlays of all variants
    BUNDLE/bundle.json       its content and its commit

The machine provides Python and torch. The overlays are unpacked there once.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from harness.bugs import catalog, pins
from harness.bugs.api.spec import RELEASED, Defect, Scenario
from harness.cli import Arguments, pin
from harness.releases import archive, overlay, resolution, uv
from harness.releases.edits import DefectError
from harness.releases.locks import PYTHONS
from harness.releases.overlay import Overlay
from harness.system import archives, machine
from harness.system.errors import ExitCode, HarnessError, Inconclusive, UserError, unknown
from harness.system.files import ROOT, folder_whole, refuse_unless_creatable, write_whole, writing
from harness.system.machine import cache_folder
from harness.system.terminal import terminal

FORMAT = 3
"""The format of bundles; others are refused."""

ARCHIVE = "overlays.tar.xz"
SITE = "site.tar.xz"
OURS = ("harness", "scenarios", "configs", "tests", "conftest.py", "pyproject.toml")
NEEDED = ("hydra-core", "packaging", "psutil", "pytest", "rich", "unidiff")
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


def _parser() -> Arguments:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the new folder")
    parser.add_argument(
        "--python", metavar="3.12", help="the Python of that machine (default: this one)"
    )
    parser.add_argument(
        "--platform",
        default="x86_64-manylinux_2_28",
        help="the platform of that machine, as uv names it",
    )
    parser.add_argument(
        "--pins",
        action="append",
        default=[],
        metavar="NAME=VERSION[,VERSION...]",
        help="further releases to include; repeatable",
    )
    return parser


def main(arguments: list[str]) -> int:
    """Make the folder, completely or not at all, and print the line that uses it."""
    options = _parser().parse_args(arguments)
    releases = {name: versions.split(",") for name, versions in map(pin, options.pins)}
    scenarios, out, platform = options.scenario, options.out, options.platform
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} is not an empty folder: name a new one")
    refuse_unless_creatable(out)
    python = options.python or pins.here()[0]
    if python not in PYTHONS:
        raise UserError(unknown("Python", python, PYTHONS))
    pins.platform_tag(platform)  # refuses an unknown one
    source = machine.source()  # before this creates files
    _check_releases(scenarios, releases)
    cache = cache_folder()
    with ExitStack() as leases:
        borrowed = {}
        for stack, defects in _stacks(scenarios, releases, cache, python, platform):
            try:
                borrowed_overlay = leases.enter_context(overlay.borrow(stack, defects, cache))
            except DefectError as error:
                if not _is_extra(stack, releases):
                    raise
                terminal().print(f"not included, a release of --pins: {error}")
                continue
            borrowed[borrowed_overlay.key] = (stack, borrowed_overlay)
        contents = {
            "format": FORMAT,
            "source": source,
            "scenarios": scenarios,
            "python": python,
            "platform": platform,
            "overlays": {key: stack.to_json() for key, (stack, _) in borrowed.items()},
        }
        with writing(out, "--out"), folder_whole(out) as aside:
            _fill(aside, cache, borrowed, contents)
    _summarize(out, borrowed, python)
    return ExitCode.AS_EXPECTED


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


def _stacks(
    scenarios: Sequence[str],
    releases: Mapping[str, Sequence[str]],
    cache: Path,
    python: str,
    platform: str,
) -> Iterator[tuple[pins.Stack, tuple[Defect, ...]]]:
    """The stack and the defects of every variant of the scenarios, including ``released``."""
    tag = pins.platform_tag(platform)
    for name in scenarios:
        scenario = catalog.scenario(name)
        for choice in _choices(scenario, releases):
            for variant in (*scenario.variants, RELEASED):
                chosen = pins.complete(scenario, {**choice, **scenario.pins_of(variant)})
                if pins.TORCH in chosen:
                    continue  # that machine makes it, from its own torch
                stack = resolution.stack(scenario, chosen, cache, python=python, platform=tag)
                yield stack, scenario.variant(variant).defects


def _choices(scenario: Scenario, releases: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """No pins, and each combination of ``releases`` that the scenario can test."""
    axes = {name: versions for name, versions in releases.items() if name in scenario.pins}
    yield {}
    for combination in product(*axes.values()) if axes else ():
        choice = dict(zip(axes, combination, strict=True))
        if pins.covers(scenario, {**scenario.pins, **choice}):
            yield choice


def _fill(
    folder: Path,
    cache: Path,
    borrowed: Mapping[str, tuple[pins.Stack, Overlay]],
    contents: Mapping[str, Any],
) -> None:
    site = folder / "site"
    of_torch = any(pins.TORCH in catalog.scenario(name).pins for name in contents["scenarios"])
    needed = (*NEEDED, *(FOR_TORCH if of_torch else ()))
    _install_needed(needed, site, contents["python"], contents["platform"])
    for name in OURS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(
                source, site / name, ignore=shutil.ignore_patterns("__pycache__", "evidence")
            )
        elif source.exists():
            shutil.copy2(source, site / name)
    write_whole(site / "bundle.json", json.dumps(contents, indent=2) + "\n")
    shutil.copy2(site / "bundle.json", folder / "bundle.json")
    write_whole(folder / "activate", ACTIVATE)
    shutil.copy2(archives.__file__, folder / "archives.py")
    files = sorted(
        _files(site), key=lambda path: (path.suffix, path)
    )  # similar files together compress better
    archive.pack(folder / SITE, ((f"site/{path.relative_to(site)}", path) for path in files))
    shutil.rmtree(site)
    archive.write(folder / ARCHIVE, borrowed, cache)


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


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _summarize(out: Path, borrowed: Mapping[str, tuple[pins.Stack, Overlay]], python: str) -> None:
    console = terminal()
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    console.print(f"{out}: {len(borrowed)} overlays for Python {python}, {size / 1e6:.0f} MB")
    for stack in dict.fromkeys(str(stack) for stack, _ in borrowed.values() if stack.pins):
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
        print(f"harness: {refusal}", file=sys.stderr)
        sys.exit(refusal.exit_code)
