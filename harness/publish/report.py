"""The report of a nightly: on the terminal, as Markdown for a job's summary, as JUnit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from harness.bugs.api.spec import Verdict
from harness.publish import changes
from harness.publish.history import Change, ReleaseResult, why
from harness.publish.steps import Watch
from harness.run.suite import Done
from harness.system.errors import ExitCode
from harness.system.files import write_whole, writing
from harness.system.terminal import table
from harness.system.text import count, markdown_escaped, markdown_table, plain, short

COLUMNS = ["scenario", "package", "release", "of", "status", "changed", "why not certain"]
OURS = ["scenario", "verdict", "seconds", "why"]


def show(console: Console, summary: Watch) -> None:
    """Print a table of the results, then the changes, with changes for the worse last."""
    console.print()
    if rows := _rows(summary):
        console.print(table("", COLUMNS, rows))
        console.print()
    for note in summary.notes:
        console.print(note)
    worse = changes.worse(summary.nightly.changes)
    for change in summary.nightly.changes:
        if change not in worse:
            console.print(f"{change.message}\n")
    for change in worse:
        console.print(f"{change.message}\n", style="red")
    console.print(headline(summary), style="bold")


def headline(summary: Watch) -> str:
    """One line: which nightly, how much it tested, and what changed."""
    news = summary.nightly.changes
    parts = [f"{count(len(summary.nightly.tested), 'release')} tested"]
    if confirmed := len(summary.nightly.confirmed):
        parts.append(f"{count(confirmed, 'recorded result')} run again")
    parts.append(_ours(summary))
    parts.append(count(len(news), "change") if news else "no change")
    if news:
        parts.append(f"{len(changes.worse(news)) or 'none'} for the worse")
    parts.append(f"{summary.seconds:.0f} s")
    return f"nightly of {summary.nightly.day}: {', '.join(parts)}"


def _ours(summary: Watch) -> str:
    """Our own verdicts: ``17 scenarios of ours (16 reproduced, 1 unsupported)``."""
    verdicts = [done.result.verdict for done in summary.nightly.ours.values()]
    counts = {verdict: verdicts.count(verdict) for verdict in Verdict}
    parts = ", ".join(f"{number} {verdict}" for verdict, number in counts.items() if number)
    return f"{count(len(verdicts), 'scenario')} of ours" + (f" ({parts})" if parts else "")


def _rows(summary: Watch) -> list[list[str]]:
    again = {result.key for result in summary.again}
    return [
        [
            result.cell.scenario,
            result.package,
            result.version,
            _day(summary, result),
            str(result.cell.status),
            ", ".join(change.kind for change in _changes_of(summary, result)),
            "" if result.cell.status.certain else short(result.cell.reason),
        ]
        for result in summary.nightly.results
        if result.key not in again
    ]


def _day(summary: Watch, result: ReleaseResult) -> str:
    release = summary.history.releases.get((result.package, result.version))
    return release.day if release else ""


def _changes_of(summary: Watch, result: ReleaseResult) -> list[Change]:
    return [c for c in summary.nightly.changes if (c.scenario, c.package, c.version) == result.key]


Make = Callable[[Watch], str]


def write(summary: Watch, files: Mapping[Make, Path | None]) -> None:
    """Write each report that has a file."""
    for make, file in files.items():
        if file:
            with writing(file, "file"):
                write_whole(file, make(summary))


def markdown(summary: Watch) -> str:
    """The nightly for a job's summary, or a comment."""
    worse = changes.worse(summary.nightly.changes)
    others = [change for change in summary.nightly.changes if change not in worse]
    lines = [f"## {headline(summary)}", ""]
    for title, news in (("Worse", worse), ("Changed", others)):
        if news:
            lines += [f"### {title}", ""]
            lines += [line for c in news for line in (f"- {_paragraph(c.message)}", "")]
    for note in summary.notes:
        lines += [f"- {markdown_escaped(note)}", ""]
    if rows := _rows(summary):
        lines += ["### Releases tested", "", _table(COLUMNS, rows), ""]
    if summary.nightly.ours:
        ours = [
            [name, str(done.result.verdict), f"{done.seconds:.1f}", short(why(done.result))]
            for name, done in summary.nightly.ours.items()
        ]
        lines += ["### Our own scenarios", "", _table(OURS, ours), ""]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_table(columns, [[markdown_escaped(cell) for cell in row] for row in rows])


def _paragraph(text: str) -> str:
    """The message of a change, with its command as code."""
    why, see, command = text.partition(changes.SEE)
    return f"{markdown_escaped(why)} {see.strip()} `{command}`" if see else markdown_escaped(text)


def junit(summary: Watch) -> str:
    """A test case for each scenario of ours and each tested release; a failure if it got worse."""
    suites = ElementTree.Element("testsuites")
    attributes = {"name": f"nightly of {summary.nightly.day}", "time": f"{summary.seconds:.1f}"}
    suite = ElementTree.SubElement(suites, "testsuite", attributes)
    for name, done in summary.nightly.ours.items():
        _own_case(suite, summary, name, done)
    for result in summary.nightly.results:
        _release_case(suite, summary, result)
    for tag, attribute in (("failure", "failures"), ("error", "errors"), ("skipped",) * 2):
        suite.set(attribute, str(len(suite.findall(f"*/{tag}"))))
    suite.set("tests", str(len(suite)))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _own_case(suite: ElementTree.Element, summary: Watch, name: str, done: Done) -> None:
    case = _case(suite, "ours", name, done.seconds)
    ours = [c for c in summary.nightly.changes if (c.scenario, c.package) == (name, None)]
    worse = changes.worse(ours)
    code, verdict, reasons = done.result.exit_code, done.result.verdict, short(why(done.result))
    if worse or code == ExitCode.NOT_AS_EXPECTED:
        _mark(case, "failure", verdict, worse[0].message if worse else reasons)
    elif code == ExitCode.UNSUPPORTED:
        _mark(case, "skipped", reasons)
    elif code:
        _mark(case, "error", verdict, reasons)


def _release_case(suite: ElementTree.Element, summary: Watch, result: ReleaseResult) -> None:
    cell, name = result.cell, f"{result.package} {result.version}"
    case = _case(suite, cell.scenario, name, cell.seconds)
    worse = changes.worse(_changes_of(summary, result))
    if worse:
        _mark(case, "failure", worse[0].kind, worse[0].message)
    elif not cell.status.certain:
        _mark(case, "skipped", f"{cell.status}: {short(cell.reason)}")
    else:
        ElementTree.SubElement(case, "system-out").text = str(cell.status)


def _case(suite: ElementTree.Element, group: str, name: str, seconds: float) -> ElementTree.Element:
    attributes = {"classname": f"watch.{group}", "name": name, "time": f"{seconds:.2f}"}
    return ElementTree.SubElement(suite, "testcase", attributes)


def _mark(case: ElementTree.Element, kind: str, message: str, text: str = "") -> None:
    mark = ElementTree.SubElement(case, kind, message=plain(message))
    mark.text = plain(text) or None
