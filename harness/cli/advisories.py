"""write each bug as an OSV record, for other tools

    python -m harness advisories --out build/advisories

The records come from recorded runs alone. Bugs that no tested release has get no record.
"""

from __future__ import annotations

from pathlib import Path

from harness.bugs import advisories, catalog
from harness.cli import Arguments
from harness.system.errors import ExitCode
from harness.system.files import Output, replace_folder
from harness.system.terminal import terminal
from harness.system.text import count

ADVISORIES = Output(
    "a set of advisories", mark="advisories.list", maker="python -m harness advisories"
)


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="a new or empty folder, or a set of advisories to replace",
    )
    out, console = parser.parse_args(arguments).out, terminal()
    records = advisories.files()
    replace_folder(out.resolve(), records, ADVISORIES)
    console.print(f"{count(len(records), 'record')}: {out}")
    if missing := advisories.without():
        bugs = {why: [name for name in missing if missing[name] == why] for why in missing.values()}
        reasons = "; ".join(f"{why} ({', '.join(names)})" for why, names in bugs.items())
        console.print(f"no record for {count(len(missing), 'bug')}: {reasons}")
    for name, why in catalog.broken().items():
        console.print(f"not that of {name}: {why}")
    return ExitCode.INCONCLUSIVE if catalog.broken() else ExitCode.AS_EXPECTED
