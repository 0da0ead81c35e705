"""show what the cache contains, and free it"""

from __future__ import annotations

from pathlib import Path

from harness.cli import Arguments
from harness.rank.manifest import read_manifest
from harness.releases import overlay_cache
from harness.system.errors import ExitCode, HarnessError, UserError, unknown
from harness.system.files import writing
from harness.system.machine import cache_folder
from harness.system.terminal import table, terminal


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overlay", nargs="*", help="keys of the overlays to free (default: all)")
    parser.add_argument("--dry-run", action="store_true", help="only show")
    options = parser.parse_args(arguments)
    cache, console = cache_folder(), terminal()
    folders = {folder.name: folder for folder in overlay_cache.folders(cache)}
    for key in options.overlay:
        if key not in folders:
            raise UserError(unknown("overlay", key, folders))
    chosen = list(options.overlay or folders)
    sizes = {key: _megabytes(overlay_cache.own_use(folders[key])) for key in chosen}
    rows = [[key, sizes[key], _contents(folders[key])] for key in chosen]
    size_before = overlay_cache.disk_use(cache)
    title = f"{cache}: {_megabytes(size_before)}"
    console.print(table(title, ["overlay", "of its own", "contains"], rows))
    if options.dry_run:
        return ExitCode.AS_EXPECTED
    with writing(cache, "HARNESS_CACHE"):
        overlay_cache.delete_unfinished(cache)
        freed = overlay_cache.delete(cache, *chosen)
    size = _megabytes(size_before - overlay_cache.disk_use(cache))
    console.print(f"freed {len(freed)} of {len(chosen)}: {size}")
    for key in set(chosen) - set(freed):
        console.print(f"{key} is in use")
    return ExitCode.AS_EXPECTED


def _contents(folder: Path) -> str:
    try:
        manifest = read_manifest(folder)
    except HarnessError:
        return "damaged"
    stack = manifest["stack"]
    pins = ", ".join(f"{name} {version}" for name, version in stack["pins"].items())
    defects = f" with {', '.join(manifest['defects'])}" if manifest["defects"] else ""
    return f"{pins}{defects}; Python {stack['python']}, {stack['platform']}, {stack['date']}"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
