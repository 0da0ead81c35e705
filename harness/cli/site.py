"""write all results as a static website

    python -m harness site --out build/site
    python -m harness site --out build/site --history nightly.jsonl

Without a history it shows no nightlies, and only the results that come with the harness.
"""

from __future__ import annotations

from pathlib import Path

from harness.cli import Arguments
from harness.publish.inputs import collect
from harness.publish.site_pages import pages
from harness.system.errors import ExitCode
from harness.system.files import Output, refuse_unless_ours, replace_folder
from harness.system.terminal import terminal
from harness.system.text import count

HISTORY = Path("history.jsonl")
SITE = Output("a site", mark="site.json", maker="python -m harness site")


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="a new or empty folder, or a site to replace",
    )
    parser.add_argument(
        "--history",
        type=Path,
        metavar="FILE",
        help=f"the file with all nightlies (default: {HISTORY}, if it exists)",
    )
    options = parser.parse_args(arguments)
    out, console = options.out.resolve(), terminal()
    refuse_unless_ours(out, SITE)
    history = options.history or (HISTORY if HISTORY.is_file() else None)
    site_inputs = collect(history, console.print)
    files = pages(site_inputs)
    replace_folder(out, files, SITE)
    bugs = sum(name.startswith("bugs/") for name in files)
    nightlies = len(site_inputs.nightlies)
    console.print(
        f"{count(bugs, 'bug')}, {len(site_inputs.runs)} with a run, "
        f"{nightlies} {'nightly' if nightlies == 1 else 'nightlies'}: "
        f"{options.out / 'index.html'}"
    )
    return ExitCode.AS_EXPECTED
