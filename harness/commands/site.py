"""write everything that was found as a static website

    python -m harness site --out build/site
    python -m harness site --out build/site --history nightly.sqlite --runs runs

Without a history it has no nights, and tells of releases what came with the harness. Its pictures
are of the newest whole run of each scenario that grades, of those that the newest night names and
those under --runs.
"""

from __future__ import annotations

from pathlib import Path

from harness.commands import Arguments
from harness.errors import ExitCode
from harness.report import terminal
from harness.site.inputs import Material, collect
from harness.site.output import put, refuse_unless_ours
from harness.site.pages import pages

HISTORY = Path("history.sqlite")


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="a folder that is new or empty, or a site to replace",
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help=f"of the nights (default: {HISTORY}, if it is there)",
    )
    parser.add_argument(
        "--runs",
        type=Path,
        action="extend",
        nargs="+",
        default=[],
        metavar="DIR",
        help="run folders, or folders of run folders",
    )
    options = parser.parse_args(arguments)
    out, console = options.out.resolve(), terminal()
    refuse_unless_ours(out)
    history = options.history or (HISTORY if HISTORY.is_file() else None)
    material = collect(history, options.runs, console.print)
    made = pages(material)
    put(out, made)
    bugs = sum(name.startswith("bugs/") for name in made)
    console.print(
        f"{bugs} bugs, {len(material.shown)} with a run, {_nights(material)}: "
        f"{options.out / 'index.html'}"
    )
    return ExitCode.AS_EXPECTED


def _nights(material: Material) -> str:
    count = len(material.nights)
    return f"{count} night{'s' * (count != 1)}"
