"""write each scenario's README.md and the tables of docs/, from code and recorded runs

    python -m harness pages
    python -m harness pages bf16_clip

A page shows the scenario's docstring, metadata, parameters, functions, evidence and releases. Only
the section between the two marks "by hand" is written by hand; it is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from harness.bugs import catalog, result_file
from harness.bugs.results import Result
from harness.cli import Arguments
from harness.cli import _schemas as schemas
from harness.publish import docs_tables, field, markdown_pages
from harness.system.documents import toml_of
from harness.system.errors import ExitCode
from harness.system.files import ROOT, write_whole
from harness.system.terminal import terminal

DOCS = ROOT / "docs"
WHOLE = {
    "alive.md": markdown_pages.of_living,
    "field.md": field.page,
    "measurements.md": docs_tables.measurements_page,
    "models_table.md": docs_tables.models_page,
    **{f"schemas/{name}.json": make for name, make in schemas.DOCUMENTS.items()},
}
"""Files of docs/ that are written as a whole."""
ADDRESSED = [ROOT / "README.md", ROOT / "CITATION.cff", *sorted(DOCS.glob("*.md"))]
"""The documents that name the address of the repository."""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="*", help="whose pages to write (default: all)")
    options = parser.parse_args(arguments)
    names, console = options.scenario or catalog.sound(), terminal()
    write(names)
    others = "" if catalog.broken() else f", {', '.join([*WHOLE, *docs_tables.PARTS])}"
    console.print(f"{len(names)} pages{others}")
    for name, why in catalog.broken().items():
        console.print(f"not that of {name}: {why}")
    return ExitCode.INCONCLUSIVE if catalog.broken() else ExitCode.AS_EXPECTED


def record(cells: Collection[Result]) -> None:
    """Keep cells in the results of their scenarios, and write the pages of these."""
    result_file.record(cells)
    write(sorted({cell.scenario for cell in cells}))


def write(names: Iterable[str]) -> None:
    """Update the pages of scenarios and of docs/. While a scenario is broken, docs/ stays as it is:
    its pages would lack the bug."""
    texts = {name: markdown_pages.of_bug(name) for name in names}
    for name, text in texts.items():
        write_whole(catalog.folder(name) / markdown_pages.PAGE, text)
    if names and ADDRESSED[0].is_file():
        for file in ADDRESSED:
            text = file.read_text(encoding="utf-8")
            if (new_text := with_address(text)) != text:
                write_whole(file, new_text)
    if DOCS.is_dir() and not catalog.broken():
        _write_docs()


def with_address(text: str) -> str:
    """A text with the repository's address and the tag of its release, from pyproject.toml."""
    project = toml_of((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    text = re.sub(rf"https://github\.com/[\w.-]+/{project['name']}\b", address, text)
    place = "/".join(address.split("/")[-2:])
    text = re.sub(rf"((repository|uses): )[\w.-]+/{project['name']}\b", rf"\g<1>{place}", text)
    return re.sub(rf"({place}@|\brev: )v[\d.]+", rf"\g<1>v{project['version']}", text)


def _write_docs() -> None:
    """Write the pages of docs/ that are made from all scenarios."""
    for name, whole in WHOLE.items():
        (DOCS / name).parent.mkdir(exist_ok=True)
        write_whole(DOCS / name, whole())
    for name in docs_tables.PARTS:
        if (file := DOCS / name).is_file():
            write_whole(file, docs_tables.updated(name, file.read_text(encoding="utf-8")))
