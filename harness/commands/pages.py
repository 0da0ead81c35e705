"""write each scenario's README.md, and docs/bugs.md, from the code and the recorded runs

    python -m harness pages
    python -m harness pages bf16_clip

A page is made of the scenario's docstring, its metadata, knobs, functions and releases, and of the
evidence of it. By hand is only what stands between the marks "by hand", which is kept as it is.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness import catalog, evidence
from harness.commands import Arguments
from harness.errors import ExitCode, Inconclusive
from harness.files import ROOT, write_whole
from harness.knobs import knobs, meaning
from harness.report import releases, terminal
from harness.spec import BUGGY, Outcome, Scenario
from harness.sweep import affected
from harness.text import markdown_table

PAGE = "README.md"
"""The page of a scenario, in its folder."""
MUTATIONS = "mutations.json"
"""What came out when each mutation of a scenario was run."""
BUGS = ROOT / "docs" / "bugs.md"
BY_HAND, END = "<!-- by hand -->", "<!-- end of by hand -->"
TABLE, TABLE_END = "<!-- the bugs: generated -->", "<!-- end of the bugs -->"
NOTE = (
    "<!-- Made by `python -m harness pages`. Write between the marks below, and nowhere else. -->"
)


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario", nargs="*", help="whose pages to write (default: all)")
    options = parser.parse_args(arguments)
    names, console = options.scenario or catalog.sound(), terminal()
    write(names)
    console.print(f"{len(names)} pages, docs/bugs.md")
    for name, why in catalog.broken().items():
        console.print(f"not that of {name}: {why}")
    return ExitCode.INCONCLUSIVE if catalog.broken() else ExitCode.AS_EXPECTED


def write(names: Iterable[str]) -> None:
    """Bring the pages of scenarios, and the table of all bugs, up to date."""
    made = {name: page(name) for name in names}
    for name, text in made.items():
        write_whole(catalog.folder(name) / PAGE, text)
    if BUGS.is_file():
        write_whole(BUGS, with_table(BUGS.read_text(encoding="utf-8")))


def page(name: str) -> str:
    """A scenario's page, with the part by hand that it has."""
    told, module = catalog.scenario(name), catalog.load(name)
    parts = [
        f"# {name}",
        NOTE,
        f"`python -m harness run scenario={name}`",
        *_story(catalog.story(name)),
        _facts(told),
        f"## Variants\n\n{_variants(told)}",
        f"## Knobs\n\n{_knobs(module)}",
        f"## What is asked\n\n{_questions(module, name)}",
        _by_hand(name),
        *_evidence(name),
        *_affected(name),
        *_mutations(name),
    ]
    return "\n\n".join(parts) + "\n"


def _story(docstring: str) -> Iterator[str]:
    """The docstring's paragraphs in Markdown."""
    for paragraph in docstring.split("\n\n"):
        yield _markdown(paragraph)


def _markdown(text: str) -> str:
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _facts(told: Scenario) -> str:
    chosen = {v: {**told.pins, **told.pins_of(v)} for v in told.variants}
    rows = {
        "report": "<br>".join(map(_linked, told.report)),
        "fix": _linked(told.fix),
        "documented symptom": told.symptom,
        "only with": told.trigger,
        "remedy": told.remedy,
        "releases": releases(chosen),
        "runs on": f"{told.ranks} rank{'s' * (told.ranks > 1)}; {' or '.join(told.lanes)}",
    }
    return markdown_table(["", ""], [[name, _markdown(text)] for name, text in rows.items()])


def _linked(text: str) -> str:
    return re.sub(r"(https://[^\s)]+[^\s).,;])", r"<\1>", text)


def _variants(told: Scenario) -> str:
    rows = [
        [f"`{name}`", told.about(name), "trigger off" if not v.triggers else "", str(v.expect)]
        for name, v in told.variants.items()
    ]
    return markdown_table(["variant", "", "", "expected"], rows)


def _knobs(module: Any) -> str:
    found = knobs(module.Params)
    if not found:
        return "None."
    rows = [[f"`scenario.{k.name}={k.default}`", meaning(k)] for k in found]
    return markdown_table(["knob and default", ""], rows)


def _questions(module: Any, name: str) -> str:
    """What detect and exercised ask, and which other checks were seen to be blind."""
    lines = [
        f"- *Is it there?* {_doc(module.detect)}",
        f"- *Was it put to the test?* {_doc(module.exercised)}",
    ]
    checks = _insufficient_checks(name)
    if checks:
        lines += [
            "",
            "Other checks, and what they did in the buggy variant of the newest evidence:",
            "",
        ]
        lines += [f"- {check}: {'fired' if fired else 'silent'}" for check, fired in checks.items()]
    return "\n".join(lines)


def _doc(function: Any) -> str:
    return _markdown(" ".join((inspect.getdoc(function) or "").split()))


def _insufficient_checks(name: str) -> Mapping[str, bool]:
    found = (evidence.insufficient_checks(content) for _, content in evidence.kept(name))
    return next(filter(None, found), {})


def _by_hand(name: str) -> str:
    file = catalog.folder(name) / PAGE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    _, begin, rest = text.partition(BY_HAND)
    kept = rest.partition(END)[0].strip("\n") if begin else ""
    return "\n".join([BY_HAND, *([kept] if kept else []), END])


def _evidence(name: str) -> Iterator[str]:
    kept = evidence.kept(name)
    if kept:
        yield "## Recorded runs"
    for stem, run in kept:
        chosen = {variant: trial["pins"] for variant, trial in run["trials"].items()}
        where = ", ".join(dict.fromkeys(run["machine"]["gpus"])) or "CPU"
        yield (
            f"[{stem}](evidence/{stem}.md): {releases(chosen)}; {where}, torch "
            f"{run['machine']['torch']}, {run['started'][:10]}: **{run['result']['verdict']}**"
        )
        yield markdown_table(
            ["variant", "outcome", "what was found"], list(map(_trial, run["result"]["trials"]))
        )


def _trial(trial: Mapping[str, Any]) -> list[str]:
    lines = trial["reason"].splitlines() or [""]
    told = "<br>".join(lines[:4]) + (" ..." if len(lines) > 4 else "")
    return [f"`{trial['variant']}`", str(Outcome(trial["outcome"])), told]


def _affected(name: str) -> Iterator[str]:
    if facts := affected.of(name):
        yield affected.section(name, facts)


def _mutations(name: str) -> Iterator[str]:
    file = catalog.folder(name) / MUTATIONS
    if file.is_file():
        yield (
            "## Mutations\n\nOther faults, put into upstream in the same way as a defect. A run "
            "with one must be neither the documented bug nor clean (on the CPU, "
            f"`python -m tests.mutations {name}`)."
        )
        rows = json.loads(file.read_text(encoding="utf-8")).values()
        columns = ["put into", "the mutation", "outcome", "reason"]
        cells = [[f"`{r['variant']}`", r["about"], r["outcome"], r["reason"]] for r in rows]
        yield markdown_table(columns, cells)


def with_table(text: str) -> str:
    """A text with its table of bugs made anew, between its marks; broken ones keep their rows."""
    before, _, rest = text.partition(TABLE)
    if TABLE_END not in rest:
        raise Inconclusive(f"{BUGS.name} has lost the marks of its table of bugs")
    old, _, after = rest.partition(TABLE_END)
    rows = [row for name in catalog.names() if (row := _row(name, old))]
    table = markdown_table(
        ["scenario", "package", "what happens", "what it spoils", "the bug is in"], rows
    )
    return f"{before}{TABLE}\n\n{table}\n\n{TABLE_END}{after}"


def _row(name: str, old: str) -> list[str] | None:
    """A scenario's row; of a broken one that of the ``old`` table, if it has one."""
    upstream = catalog.folder(name).parent.name
    link = f"[`{name}`](../scenarios/{upstream}/{name}/README.md)"
    if name in catalog.broken():
        kept = re.search(rf"^\| {re.escape(link)} \| (.*) \|$", old, re.MULTILINE)
        cells = re.split(r" (?<!\\)\| ", kept[1]) if kept else []
        return [link, *(cell.replace("\\|", "|") for cell in cells)] if kept else None
    told = catalog.scenario(name)
    subject = next(iter(told.pins), "torch")
    return [link, subject, told.title, told.goes_wrong, _carrier(told)]


def _carrier(told: Scenario) -> str:
    """Whether a published release has the bug of ``buggy``, or an edit puts it back."""
    if told.variant(BUGGY).defects:
        return "a release that we edit to put it back"
    if not told.pins:
        return "the installed torch"
    release = {**told.pins, **told.pins_of(BUGGY)}[told.subject]
    return f"published release {release}"
