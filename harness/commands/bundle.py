"""make a folder with all that a box without a network needs to run chosen scenarios

    BUNDLE/activate          to be sourced there, like a virtual environment's
    BUNDLE/site.tar.xz       the harness and what it imports, for the box's Python; not torch
    BUNDLE/overlays.tar.xz   the overlays of every variant, each content once, see ``archive``
    BUNDLE/bundle.json       what is in it, and of which commit

The box brings Python and torch. Overlays are unpacked there, once, and compiled for its Python.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

from harness import catalog, machine
from harness.commands import Arguments, pin
from harness.files import ROOT, new_folder_beside, write_whole, writing
from harness.machine import cache_folder
from harness.report import terminal
from harness.spec import RELEASED, Defect, ExitCode, HarnessError, Inconclusive, Scenario, UserError
from harness.upstream import archive, overlay, pins, resolution
from harness.upstream.defect import DefectError
from harness.upstream.overlay import Overlay

FORMAT = 2
"""Of a bundle; an older one is refused."""

ARCHIVE = "overlays.tar.xz"
SITE = "site.tar.xz"
OURS = ("harness", "scenarios", "configs", "tests", "conftest.py", "pyproject.toml")
NEEDED = ("hydra-core", "packaging", "psutil", "pytest", "rich")
"""What runs there. What makes overlays (uv, LibCST) stays here."""

ACTIVATE = """\
# Source this on the box: . BUNDLE/activate
BUNDLE=$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)
PLACE=$BUNDLE
if [ ! -d "$PLACE/site" ] && [ ! -w "$PLACE" ]; then  # somebody else's: unpacked beside our cache
    PLACE=${XDG_CACHE_HOME:-$HOME/.cache}/distributed-bugs/bundles/$(cksum < "$BUNDLE/bundle.json" |
        tr ' ' -)
fi
[ -d "$PLACE/site" ] || python3 -W ignore - "$BUNDLE/site.tar.xz" "$PLACE" << 'END'
import os, shutil, sys, tarfile
archive, place = sys.argv[1:]
aside = os.path.join(place, f".unpacked.{os.uname().nodename}.{os.getpid()}")
os.makedirs(aside)
try:
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(aside, filter="data")
        else:
            print("this Python's tarfile has no filters: the bundle is taken at its word")
            tar.extractall(aside)
    os.rename(os.path.join(aside, "site"), os.path.join(place, "site"))
except OSError:
    if not os.path.isdir(os.path.join(place, "site")):  # nobody else was quicker
        raise
finally:
    shutil.rmtree(aside, ignore_errors=True)
END
export PYTHONPATH="$PLACE/site${PYTHONPATH:+:$PYTHONPATH}"
export HARNESS_CACHE="${HARNESS_CACHE:-$PLACE/cache}"
python3 -W ignore -m harness.commands.bundle "$BUNDLE"
"""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="the folder to make")
    parser.add_argument("--python", metavar="3.12", help="the box's Python (default: this one)")
    parser.add_argument(
        "--platform", default="x86_64-manylinux_2_28", help="the box's platform, as uv names it"
    )
    parser.add_argument(
        "--pins",
        action="append",
        default=[],
        metavar="NAME=VERSION[,VERSION...]",
        help="other releases to carry than the scenario's own; repeatable",
    )
    options = parser.parse_args(arguments)
    releases = {name: versions.split(",") for name, versions in map(pin, options.pins)}
    make(options.scenario, options.out, options.python, options.platform, releases)
    return ExitCode.AS_EXPECTED


def make(
    scenarios: Sequence[str],
    out: Path,
    python: str | None,
    platform: str,
    releases: Mapping[str, Sequence[str]],
) -> None:
    """Make the folder ``out``, whole or not at all, and print the line that uses it.

    ``python`` is like ``3.12`` and ``platform`` like ``x86_64-manylinux_2_28``; ``releases`` names
    further releases of pinned packages to carry, each with the scenario's other pins.
    """
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty: name a new folder")
    python = python or pins.here()[0]
    source = machine.source()  # before this makes files of its own
    _check_releases(scenarios, releases)
    cache = cache_folder()
    with ExitStack() as kept:
        lent = {}
        for stack, defects in _wanted(scenarios, releases, cache, python, platform):
            try:
                found = kept.enter_context(overlay.borrowed(stack, defects, cache))
            except DefectError as error:
                if not _is_extra(stack, releases):
                    raise
                terminal().print(f"left out, of a release that --pins names: {error}")
                continue
            lent[found.key] = (stack, found)
        contents = {
            "format": FORMAT,
            "source": source,
            "scenarios": list(scenarios),
            "python": python,
            "platform": platform,
            "overlays": {key: stack.to_json() for key, (stack, _) in lent.items()},
        }
        with writing(out, "--out"):
            _make_folder(out, cache, lent, contents)
    _tell(out, lent, python)


def _make_folder(
    out: Path,
    cache: Path,
    lent: Mapping[str, tuple[pins.Stack, Overlay]],
    contents: Mapping[str, Any],
) -> None:
    aside = new_folder_beside(out)
    try:
        _fill(aside, cache, lent, contents)
        if out.exists():
            out.rmdir()
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _check_releases(scenarios: Sequence[str], releases: Mapping[str, Sequence[str]]) -> None:
    known = {pin for name in scenarios for pin in catalog.scenario(name).pins}
    for name in releases:
        if name not in known:
            raise UserError(catalog.unknown("pin of these scenarios", name, sorted(known)))
    asked = [each for name in scenarios for each in _choices(catalog.scenario(name), releases)]
    for name, versions in releases.items():
        for version in versions:
            if not any(given.get(name) == version for given in asked):
                about = (catalog.scenario(scenario).releases for scenario in scenarios)
                raise UserError(f"{name} {version}: these scenarios are about {', '.join(about)}")


def _is_extra(stack: pins.Stack, releases: Mapping[str, Sequence[str]]) -> bool:
    return any(stack.pins.get(name) in versions for name, versions in releases.items())


def _wanted(
    scenarios: Sequence[str],
    releases: Mapping[str, Sequence[str]],
    cache: Path,
    python: str,
    platform: str,
) -> Iterator[tuple[pins.Stack, tuple[Defect, ...]]]:
    """Every stack and set of defects that some variant of the scenarios runs on, released too."""
    tag = pins.platform_tag(platform)
    for name in scenarios:
        told = catalog.scenario(name)
        for given in _choices(told, releases):
            for variant in (*told.variants, RELEASED):
                chosen = pins.complete(told, {**given, **told.pins_of(variant)})
                stack = resolution.stack(told, chosen, cache, python=python, platform=tag)
                yield stack, told.variant(variant).defects


def _choices(told: Scenario, releases: Mapping[str, Sequence[str]]) -> Iterator[dict[str, str]]:
    """The scenario's own pins, and each combination of the releases named that it is about."""
    named = {name: versions for name, versions in releases.items() if name in told.pins}
    yield {}
    for each in product(*named.values()) if named else ():
        given = dict(zip(named, each, strict=True))
        if pins.covers(told, {**told.pins, **given}):
            yield given


def _fill(
    folder: Path,
    cache: Path,
    lent: Mapping[str, tuple[pins.Stack, Overlay]],
    contents: Mapping[str, Any],
) -> None:
    site = folder / "site"
    _install_needed(site, contents["python"], contents["platform"])
    for name in OURS:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, site / name, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy2(source, site / name)
    write_whole(site / "bundle.json", json.dumps(contents, indent=2) + "\n")
    shutil.copy2(site / "bundle.json", folder / "bundle.json")
    write_whole(folder / "activate", ACTIVATE)
    files = sorted(_files(site), key=lambda path: (path.suffix, path))  # alike side by side
    archive.pack(folder / SITE, ((f"site/{path.relative_to(site)}", path) for path in files))
    shutil.rmtree(site)
    archive.write(folder / ARCHIVE, lent, cache)


def _install_needed(site: Path, python: str, platform: str) -> None:
    from uv import find_uv_bin

    done = subprocess.run(
        [
            find_uv_bin(),
            "pip",
            "install",
            "--quiet",
            "--target",
            str(site),
            "--python",
            sys.executable,
            "--python-version",
            python,
            "--python-platform",
            platform,
            "--only-binary",
            ":all:",
            "--no-binary",
            "antlr4-python3-runtime",
            *NEEDED,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise Inconclusive(f"cannot fetch what the harness needs: {' '.join(done.stderr.split())}")


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _tell(out: Path, lent: Mapping[str, tuple[pins.Stack, Overlay]], python: str) -> None:
    console = terminal()
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    console.print(f"{out}: {len(lent)} overlays for Python {python}, {size / 1e6:.0f} MB")
    for stack in dict.fromkeys(str(stack) for stack, _ in lent.values() if stack.pins):
        console.print(f"  {stack}")
    console.print(
        f"on the box, with its own torch:  . {out.name}/activate && "
        "python3 -m harness run scenario=NAME launch=gpu"
    )


def unpack(bundle: Path, cache: Path) -> None:
    """Bring a bundle's overlays into the cache of the box, compiled; those it has are left.

    Raises UserError for what is no bundle, and Inconclusive for one that is not what it says.
    """
    keys = _keys(bundle)
    if all((cache / "overlays" / key).exists() for key in keys):
        return  # a cache that others made may be read by whom cannot write to it
    try:
        with writing(cache, "HARNESS_CACHE"):
            archive.unpack(bundle / ARCHIVE, keys, cache)
    except archive.Refused as refusal:
        raise Inconclusive(f"{bundle} is refused: {refusal}; make it anew") from None


def _keys(bundle: Path) -> list[str]:
    try:
        contents = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
        form, keys = contents.get("format"), list(contents["overlays"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{bundle} is no bundle: it has no bundle.json that says so") from None
    if form != FORMAT:
        raise UserError(f"{bundle} is a bundle of another version: make it anew")
    if not all(re.fullmatch(r"[0-9a-f]{20}", key) for key in keys):
        raise UserError(f"{bundle} is no bundle: its bundle.json names what is no overlay")
    return keys


if __name__ == "__main__":
    try:
        unpack(Path(sys.argv[1]), cache_folder())
    except HarnessError as refusal:
        print(f"harness: {refusal}", file=sys.stderr)
        sys.exit(refusal.exit_code)
