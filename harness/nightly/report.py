"""What a night says: on the terminal, as Markdown for a job's summary, as JUnit, as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

from rich.console import Console

from harness.errors import ExitCode
from harness.files import write_whole, writing
from harness.nightly.steps import Told, to_json
from harness.report import count, table
from harness.spec import Verdict
from harness.sweep import changes
from harness.sweep.history import Change, Kind, Own, ReleaseResult
from harness.text import plain

COLUMNS = ["scenario", "package", "release", "of", "status", "changed", "why there is no answer"]
OURS = ["scenario", "verdict", "seconds", "why"]
WIDEST = 100
"""Characters of a reason that a table shows."""


def show(console: Console, told: Told) -> None:
    """Print a night: a table of what was asked, and what changed, what got worse last."""
    console.print()
    if rows := _rows(told):
        console.print(table("", COLUMNS, rows))
        console.print()
    for note in [*told.notes, *_still(told)]:
        console.print(note)
    worse = changes.worse(told.changes)
    for text in said([c for c in told.changes if c not in worse]):
        console.print(f"{text}\n")
    for text in said(worse):
        console.print(f"{text}\n", style="red")
    console.print(headline(told), style="bold")


def said(found: Sequence[Change]) -> list[str]:
    """A paragraph a change; a release that was yanked has one for all that it answered."""
    yanked: dict[tuple[str | None, str | None], list[Change]] = {}
    for change in found:
        if change.kind == changes.YANKED:
            yanked.setdefault((change.package, change.version), []).append(change)
    texts = [
        f"{package} {version} was yanked, and is not asked any more. Kept are its last answers to "
        + ", ".join(f"{c.scenario} ({c.before})" for c in of)
        + "."
        for (package, version), of in yanked.items()
    ]
    return texts + [change.told for change in found if change.kind != changes.YANKED]


def headline(told: Told) -> str:
    """One line: which night, how much was asked, and how it came out."""
    worse = len(changes.worse(told.changes))
    counts = [f"{count(len(told.asked), 'release')} asked"]
    if told.night.kind is Kind.NIGHT:
        counts.append(_ours(told))
    counts.append(count(len(told.changes), "change") if told.changes else "no change")
    got = f"{worse} for the worse" if worse else "none for the worse" if told.changes else ""
    return f"{_what(told)} of {told.night.day}: " + ", ".join(
        [*counts, *filter(None, [got]), f"{told.seconds:.0f} s"]
    )


def _what(told: Told) -> str:
    return "replay" if told.night.kind is Kind.REPLAY else "night"


def _ours(told: Told) -> str:
    """How our own came out: ``17 scenarios (16 reproduced, 1 unsupported)``."""
    counts = {v: sum(own.verdict == str(v) for own in told.own) for v in Verdict}
    said = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
    return f"{count(len(told.own), 'scenario')} of ours" + (f" ({said})" if said else "")


def _still(told: Told) -> list[str]:
    """A line for what had no answer before and has none now; a row for each would be noise."""
    names = dict.fromkeys(asked.cell.scenario for asked in told.again)
    if not names:
        return []
    releases = count(len(told.again), "release")
    return [f"{releases} asked again, still without an answer: {', '.join(names)}"]


def _rows(told: Told) -> list[list[str]]:
    return [
        [
            asked.cell.scenario,
            asked.package,
            asked.version,
            _day(told, asked),
            str(asked.cell.status),
            ", ".join(change.kind for change in _of(told, asked)),
            "" if asked.cell.status.certain else changes.short(asked.cell.reason, WIDEST),
        ]
        for asked in told.asked
        if asked not in told.again
    ]


def _day(told: Told, asked: ReleaseResult) -> str:
    release = told.releases.get((asked.package, asked.version))
    return release.day if release else ""


def _of(told: Told, asked: ReleaseResult) -> list[Change]:
    return [c for c in told.changes if (c.scenario, c.package, c.version) == asked.key]


def _of_own(told: Told, own: Own) -> list[Change]:
    return [c for c in told.changes if c.scenario == own.scenario and c.package is None]


def _why(own: Own) -> str:
    reasons = [reason.splitlines()[0] for reason in own.result["reasons"] if reason]
    return changes.short("; ".join(reasons), WIDEST)


Make = Callable[[Sequence[Told]], str]


def keep(nights: Sequence[Told], files: Mapping[Make, Path | None]) -> None:
    """Write each file that was asked for."""
    for make, file in files.items():
        if file:
            with writing(file, "file"):
                write_whole(file, make(nights))


def markdown(nights: Sequence[Told]) -> str:
    """The nights for a job's summary, or a comment."""
    return "\n".join(line for told in nights for line in _section(told)) + "\n"


def _section(told: Told) -> list[str]:
    worse = changes.worse(told.changes)
    rest = [change for change in told.changes if change not in worse]
    lines = [f"## {headline(told)}", ""]
    for title, found in (("Worse", worse), ("Changed", rest)):
        if found:
            lines += [f"### {title}", ""]
            lines += [line for text in said(found) for line in (f"- {_paragraph(text)}", "")]
    for note in [*told.notes, *_still(told)]:
        lines += [f"- {_marked(note)}", ""]
    if rows := _rows(told):
        lines += ["### Releases asked", "", *_table(COLUMNS, rows), ""]
    if told.own:
        ours = [[o.scenario, o.verdict, f"{o.seconds:.1f}", _why(o)] for o in told.own]
        lines += ["### Our own record", "", *_table(OURS, ours), ""]
    return lines


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *([_marked(cell) for cell in row] for row in rows)]
    return ["| " + " | ".join(line) + " |" for line in lines]


def _marked(text: str) -> str:
    """A text as Markdown shows it: what upstream wrote, in a reason, is no mark-up."""
    line = " ".join(plain(text).split())
    return re.sub(r"[\\`*|<>\[\]]|\b_|_\b", lambda found: f"\\{found[0]}", line)


def _paragraph(text: str) -> str:
    """What changed, its command as code."""
    why, see, command = text.partition(changes.SEE)
    return f"{_marked(why)} {see.strip()} `{command}`" if see else _marked(text)


def junit(nights: Sequence[Told]) -> str:
    """A test case for each scenario of ours and each release asked; a failure for the worse."""
    suites = ElementTree.Element("testsuites")
    for told in nights:
        name = f"{_what(told)} of {told.night.day}"
        suite = ElementTree.SubElement(suites, "testsuite", name=name, time=f"{told.seconds:.1f}")
        for own in told.own:
            _own_case(suite, told, own)
        for asked in told.asked:
            _asked_case(suite, told, asked)
        for kind in ("failure", "error", "skipped"):
            suite.set(
                f"{kind}s".replace("skippeds", "skipped"), str(len(suite.findall(f"*/{kind}")))
            )
        suite.set("tests", str(len(suite)))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _own_case(suite: ElementTree.Element, told: Told, own: Own) -> None:
    case = _case(suite, "ours", own.scenario, own.seconds)
    worse = changes.worse(_of_own(told, own))
    code = int(own.result["exit_code"])
    if worse or code == ExitCode.NOT_AS_EXPECTED:
        _mark(case, "failure", own.verdict, worse[0].told if worse else _why(own))
    elif code == ExitCode.UNSUPPORTED:
        _mark(case, "skipped", _why(own))
    elif code:
        _mark(case, "error", own.verdict, _why(own))


def _asked_case(suite: ElementTree.Element, told: Told, asked: ReleaseResult) -> None:
    name = f"{asked.package} {asked.version}"
    case = _case(suite, asked.cell.scenario, name, asked.cell.seconds)
    worse = changes.worse(_of(told, asked))
    if worse:
        _mark(case, "failure", worse[0].kind, worse[0].told)
    elif not asked.cell.status.certain:
        _mark(case, "skipped", f"{asked.cell.status}: {changes.short(asked.cell.reason, WIDEST)}")
    else:
        ElementTree.SubElement(case, "system-out").text = str(asked.cell.status)


def _case(suite: ElementTree.Element, place: str, name: str, seconds: float) -> ElementTree.Element:
    told = {"classname": f"watch.{place}", "name": name, "time": f"{seconds:.2f}"}
    return ElementTree.SubElement(suite, "testcase", told)


def _mark(case: ElementTree.Element, kind: str, message: str, text: str = "") -> None:
    mark = ElementTree.SubElement(case, kind, message=plain(message))
    mark.text = plain(text) or None


def as_json(nights: Sequence[Told]) -> str:
    """All that the nights say, as JSON."""
    told = {
        "nights": [to_json(night) for night in nights],
        "exit_code": ExitCode.worst(night.exit_code for night in nights),
    }
    return json.dumps(told, indent=1) + "\n"
