"""write each scenario's README.md and the tables of docs/, from code and recorded runs

    python -m harness pages
    python -m harness pages bf16_clip

A page shows the scenario's docstring, metadata, parameters, functions, evidence and releases. Only
the section between the two marks "by hand" is written by hand; it is kept as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness import catalog
from harness.api.spec import BUGGY, Scenario
from harness.cli import Arguments
from harness.publish import docs_tables, markdown_pages
from harness.system.errors import ExitCode, Inconclusive
from harness.system.files import ROOT, write_whole
from harness.system.installation import for_readers
from harness.system.terminal import terminal
from harness.system.text import markdown_table, toml

PAGE = "README.md"
"""The page of a scenario, in its folder."""
BUGS = ROOT / "docs" / "bugs.md"
WHOLE = {"alive.md": markdown_pages.of_living, "models_table.md": docs_tables.models_page}
"""Pages beside docs/bugs.md that are written as a whole."""
TABLES = {
    "probe_results.md": docs_tables.with_probed,
    "ranges.md": docs_tables.with_ranges,
    "trust.md": docs_tables.with_inferred,
}
"""Pages with a generated part, and what writes that."""
ADDRESSED = [ROOT / "README.md", ROOT / "CITATION.cff", *sorted((ROOT / "docs").glob("*.md"))]
"""The documents that name the address of the repository."""
BY_HAND, END = "<!-- by hand -->", "<!-- end of by hand -->"
TABLE, TABLE_END = "<!-- the bugs: generated -->", "<!-- end of the bugs -->"


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="*", help="whose pages to write (default: all)")
    options = parser.parse_args(arguments)
    names, console = options.scenario or catalog.sound(), terminal()
    write(names)
    console.print(f"{len(names)} pages, docs/bugs.md, {', '.join([*WHOLE, *TABLES])} and stories")
    for name, why in catalog.broken().items():
        console.print(f"not that of {name}: {why}")
    return ExitCode.INCONCLUSIVE if catalog.broken() else ExitCode.AS_EXPECTED


def write(names: Iterable[str]) -> None:
    """Bring the pages of scenarios, the table of all bugs, the pages of those that are alive and
    of their releases, and the stories up to date. While a scenario is broken, all but the first two
    stay as they are: they would lack the bug."""
    made = {name: page(name) for name in names}
    for name, text in made.items():
        write_whole(catalog.folder(name) / PAGE, text)
    if names and ADDRESSED[0].is_file():
        _write_address()
    if BUGS.is_file():
        write_whole(BUGS, with_table(BUGS.read_text(encoding="utf-8")))
        if not catalog.broken():
            _write_docs()


def with_address(text: str) -> str:
    """A text with the address of the repository that pyproject.toml has."""
    project = toml((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    address = project["urls"]["Repository"]
    text = re.sub(rf"https://github\.com/[\w.-]+/{project['name']}\b", address, text)
    place = "/".join(address.split("/")[-2:])
    return re.sub(rf"(repository: )[\w.-]+/{project['name']}\b", rf"\g<1>{place}", text)


def _write_address() -> None:
    for file in ADDRESSED:
        text = file.read_text(encoding="utf-8")
        if (made := with_address(text)) != text:
            write_whole(file, made)


def _write_docs() -> None:
    """The pages beside docs/bugs.md that are made of all scenarios."""
    for name, whole in WHOLE.items():
        write_whole(BUGS.with_name(name), whole())
    folder = BUGS.with_name("stories")
    folder.mkdir(exist_ok=True)
    for name, text in markdown_pages.of_stories():
        write_whole(folder / name, text)
    for name, with_part in TABLES.items():
        file = BUGS.with_name(name)
        if file.is_file():
            write_whole(file, with_part(file.read_text(encoding="utf-8")))


def page(name: str) -> str:
    """A scenario's page, with the section that is written by hand."""
    return markdown_pages.of_bug(name, _by_hand(name))


def _by_hand(name: str) -> str:
    file = catalog.folder(name) / PAGE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    _, begin, rest = text.partition(BY_HAND)
    kept = rest.partition(END)[0].strip("\n") if begin else ""
    return "\n".join([BY_HAND, *([kept] if kept else []), END])


def with_table(text: str) -> str:
    """A text with a new table of bugs between its marks. Broken scenarios keep their rows."""
    before, _, rest = text.partition(TABLE)
    if TABLE_END not in rest:
        raise Inconclusive(f"{BUGS.name} has no marks for its table of bugs")
    old, _, after = rest.partition(TABLE_END)
    rows = [row for name in catalog.names() if (row := _row(name, old))]
    columns = ["scenario", "package", "what happens", "harm", "how it shows", "the bug is in"]
    table = for_readers(markdown_table(columns, rows))
    return f"{before}{TABLE}\n\n{table}\n\n{TABLE_END}{after}"


def _row(name: str, old: str) -> list[str] | None:
    """A scenario's row. A broken scenario keeps its row of the ``old`` table, if any."""
    link = docs_tables.link(name)
    if name in catalog.broken():
        kept = re.search(rf"^\| {re.escape(link)} \| (.*) \|$", old, re.MULTILINE)
        cells = re.split(r" (?<!\\)\| ", kept[1]) if kept else []
        return [link, *(cell.replace("\\|", "|") for cell in cells)] if kept else None
    scenario = catalog.scenario(name)
    subject = catalog.subject(name)
    return [link, subject, scenario.title, scenario.harm, scenario.visibility, _where(scenario)]


def _where(scenario: Scenario) -> str:
    """Whether a published release has the bug, or an edit puts it back."""
    if scenario.variant(BUGGY).defects:
        return "an edited release"
    if not scenario.pins:
        return "the installed torch"
    release = {**scenario.pins, **scenario.pins_of(BUGGY)}[scenario.subject]
    return f"published release {release}"
