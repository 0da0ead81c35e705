"""a folder with all that a box without a network needs to run chosen scenarios

    BUNDLE/activate          to be sourced there, like a virtual environment's
    BUNDLE/site.tar.xz       the harness and what it imports, for the box's Python; not torch
    BUNDLE/overlays.tar.xz   the overlays of every variant, files that they share stored once
    BUNDLE/bundle.json       what is in it, and of which commit

The box brings Python and torch. Overlays are unpacked there, once, and compiled for its Python.
"""

from __future__ import annotations

import compileall
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from harness import catalog, machine
from harness.files import ROOT, sha256, write_whole
from harness.machine import cache_folder
from harness.report import terminal
from harness.spec import RELEASED, Defect, ExitCode, Inconclusive, Scenario, UserError
from harness.upstream import overlay, pins
from harness.upstream.defect import DefectError
from harness.upstream.overlay import Overlay
from harness.verbs import Arguments, pin

ARCHIVE = "overlays.tar.xz"
SITE = "site.tar.xz"
COMPRESSION = (
    {"id": lzma.FILTER_X86},
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 27},
)
"""Releases of one package are alike: a window of 128 MB, and files of one name side by side, halve
the archive. The box needs that much memory to unpack it."""
STREAMS = 4
"""How many streams an archive is at most cut into, which as many cores compress side by side; a
reader of xz takes them as one. Each costs the likeness of what was cut apart."""
OURS = ("harness", "scenarios", "configs", "tests", "conftest.py", "pyproject.toml")
NEEDED = ("hydra-core", "packaging", "psutil", "pytest", "rich")
"""What runs there. What makes overlays (uv, pip, LibCST) stays here."""

ACTIVATE = """\
# Source this on the box: . BUNDLE/activate
BUNDLE=$(cd "$(dirname "${BASH_SOURCE:-$0}")" && pwd)
if [ ! -d "$BUNDLE/site" ]; then
    python3 -W ignore -m tarfile -e "$BUNDLE/site.tar.xz" "$BUNDLE/.unpacked" &&
        mv "$BUNDLE/.unpacked/site" "$BUNDLE/site" && rmdir "$BUNDLE/.unpacked"
fi
export PYTHONPATH="$BUNDLE/site${PYTHONPATH:+:$PYTHONPATH}"
export HARNESS_CACHE="${HARNESS_CACHE:-$BUNDLE/cache}"
python3 -W ignore -m harness.verbs.bundle "$BUNDLE"
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
        "--pins", action="append", default=[], metavar="NAME=VERSION[,VERSION...]",
        help="other releases to carry than the scenario's own; repeatable",
    )  # fmt: skip
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
    out.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}."))
    try:
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
                "source": source,
                "scenarios": list(scenarios),
                "python": python,
                "platform": platform,
                "overlays": {key: stack.to_json() for key, (stack, _) in lent.items()},
            }
            _fill(aside, cache, lent, contents)
        aside.chmod(0o755)
        if out.exists():
            out.rmdir()
        aside.rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _tell(out, lent, python)


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
                stack = pins.stack(told, chosen, cache, python=python, platform=tag)
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
    _archive(folder / SITE, {f"site/{p.relative_to(site)}": p for p in _files(site)})
    shutil.rmtree(site)
    _archive(folder / ARCHIVE, _overlay_files(cache, lent))


def _install_needed(site: Path, python: str, platform: str) -> None:
    from uv import find_uv_bin

    done = subprocess.run(
        [
            find_uv_bin(), "pip", "install", "--quiet", "--target", str(site), "--python",
            sys.executable, "--python-version", python, "--python-platform", platform,
            "--only-binary", ":all:", "--no-binary", "antlr4-python3-runtime", *NEEDED,
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Inconclusive(f"cannot fetch what the harness needs: {' '.join(done.stderr.split())}")


def _overlay_files(cache: Path, lent: Mapping[str, tuple[pins.Stack, Overlay]]) -> dict[str, Path]:
    """What goes into the archive of overlays, by its name there."""
    files = {}
    for key, (stack, found) in lent.items():
        for path in _files(found.folder):
            files[f"overlays/{key}/{path.relative_to(found.folder)}"] = path
        for name, version in stack.pins.items():
            released = pins.release_file(cache, name, version)
            if released.is_file():
                files[f"releases/{released.name}"] = released
    return files


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _archive(archive: Path, files: Mapping[str, Path]) -> None:
    """Write an archive of files, each content once, those that are alike side by side."""
    stored: dict[str, str] = {}
    with tempfile.TemporaryFile(dir=archive.parent) as plain:
        with tarfile.open(fileobj=plain, mode="w") as tar:
            for name in sorted(files, key=_kind):
                _add(tar, files[name], name, stored)
        with archive.open("wb") as packed:
            packed.writelines(_streams(plain.fileno()))


def _streams(file: int) -> Iterator[bytes]:
    """A file's content in xz, as several streams that are compressed side by side."""
    size, count = os.fstat(file).st_size, min(STREAMS, os.cpu_count() or 1)
    edges = [size * n // count for n in range(count + 1)]
    with ThreadPoolExecutor(count) as pool:  # lzma lets other threads run
        yield from pool.map(partial(_stream, file), edges, edges[1:])


def _stream(file: int, start: int, end: int) -> bytes:
    compressor = lzma.LZMACompressor(filters=list(COMPRESSION))
    at, packed = start, []
    while at < end:
        read = os.pread(file, min(end - at, 1 << 22), at)
        packed.append(compressor.compress(read))
        at += len(read)
    return b"".join([*packed, compressor.flush()])


def _add(tar: tarfile.TarFile, path: Path, name: str, stored: dict[str, str]) -> None:
    """Add a file, as a link if one of the same content is in the archive already."""
    content = sha256(path)
    member = tar.gettarinfo(path, name)
    member.type, member.linkname = tarfile.REGTYPE, ""
    if content in stored:
        member.type, member.linkname, member.size = tarfile.LNKTYPE, stored[content], 0
        tar.addfile(member)
        return
    stored[content] = name
    member.size = path.stat().st_size
    with path.open("rb") as file:
        tar.addfile(member, file)


def _kind(name: str) -> tuple[str, ...]:
    """What archived files are ordered by: their ending, their path within an overlay, the rest."""
    return name.rpartition(".")[2], name.partition(f"/{overlay.SITE}/")[2], name


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
    """Bring a bundle's overlays into the cache of the box, compiled; those it has are left."""
    contents = json.loads((bundle / "bundle.json").read_text())
    folder = cache / "overlays"
    if all((folder / key).exists() for key in contents["overlays"]):
        return
    folder.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(dir=cache, prefix=".unpacking."))
    try:
        with tarfile.open(bundle / ARCHIVE) as tar:
            _extract(tar, aside)
        for made in sorted((aside / "overlays").iterdir()):
            compileall.compile_dir(made / overlay.SITE, quiet=2, workers=0)
            if not (folder / made.name).exists():
                made.rename(folder / made.name)
        _keep_releases(aside, cache)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _extract(tar: tarfile.TarFile, folder: Path) -> None:
    if hasattr(tarfile, "tar_filter"):
        tar.extractall(folder, filter="tar")
    else:  # the first patches of Python 3.10 and 3.11
        tar.extractall(folder)


def _keep_releases(aside: Path, cache: Path) -> None:
    (cache / "releases").mkdir(exist_ok=True)
    for file in aside.glob("releases/*.json"):
        os.replace(file, cache / "releases" / file.name)


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), cache_folder())
