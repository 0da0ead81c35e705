"""write each scenario's README.md and the tables of docs/, from code and recorded runs

    python -m harness pages
    python -m harness pages bf16_clip

A page shows the scenario's docstring, metadata, parameters, functions, evidence and releases. Only
the section between the two marks "by hand" is written by hand; it is kept as it is.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from harness import catalog
from harness.api.knobs import knobs, meaning
from harness.api.spec import BUGGY, Outcome, Scenario
from harness.cli import Arguments
from harness.publish import alive, docs_tables, stories
from harness.ranges import affected, commits, remedies
from harness.ranges.cell import Status
from harness.ranges.commits import Change
from harness.ranges.periods import periods, tested
from harness.runs import run_folder
from harness.runs.verdict_text import alarm, releases
from harness.system.errors import ExitCode, Inconclusive
from harness.system.files import ROOT, write_whole
from harness.system.installation import for_readers
from harness.system.terminal import count, terminal
from harness.system.text import LINK, markdown, markdown_table, toml

PAGE = "README.md"
"""The page of a scenario, in its folder."""
MUTATIONS = "mutations.json"
"""The outcome of each mutation of a scenario."""
OLD_WORDS = {
    "as is meant here:": "as intended:",
    "nothing found; the trigger was off": "no symptom; the trigger was off",
    "nothing found;": "no symptom, although the trigger occurred:",
}
"""What runs of November 2026 wrote about a clean trial, and what they write now."""
PRINTS = "With the bug it prints WRONG at the end, and without the bug it prints right."
BUGS = ROOT / "docs" / "bugs.md"
WHOLE = {"alive.md": alive.page, "models_table.md": docs_tables.models_page}
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
NOTE = (
    "<!-- Made by `python -m harness pages`. Write between the marks below, and nowhere else. -->"
)


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
    folder = BUGS.with_name(stories.FOLDER)
    folder.mkdir(exist_ok=True)
    for name, text in stories.texts():
        write_whole(folder / name, text)
    for name, with_part in TABLES.items():
        file = BUGS.with_name(name)
        if file.is_file():
            write_whole(file, with_part(file.read_text(encoding="utf-8")))


def page(name: str) -> str:
    """A scenario's page, with the section that is written by hand: what a user asks comes first."""
    scenario, module = catalog.scenario(name), catalog.load(name)
    parts = [
        f"# {name}",
        NOTE,
        markdown(scenario.title) + ".",
        f"## Am I affected?\n\n{_concerned(name, scenario)}",
        "## What it does",
        *map(markdown, catalog.story(name).split("\n\n")[1:]),
        _by_hand(name),
        f"## See it run\n\n{_shown(name)}",
        f"## Variants\n\n{_variants(scenario)}",
        f"## Parameters\n\n{_parameters(module)}",
        f"## How it is judged\n\n{_judgement(module, name)}",
        *_evidence(name),
        *_affected(name),
        *_mutations(name),
        f"## Upstream\n\n{_facts(name, scenario)}",
    ]
    return for_readers("\n\n".join(parts) + "\n")


def _concerned(name: str, scenario: Scenario) -> str:
    """The releases, the condition, and the remedy."""
    found = "<br>".join(f"{scenario.subject} {period}" for period in periods(name))
    rows = {
        "affected": found or _nobody(name, scenario),
        "cannot have it": "<br>".join(
            f"{each.releases}: {each.why}" + (f", {_linked(each.link)}" if each.link else "")
            for each in scenario.absent
        ),
        "only with": scenario.trigger,
        "harm": f"{scenario.harm}; {scenario.visibility}",
        "remedy": remedies.of(name),
        "check your releases": f"`python -m harness check scenario={name}`",
    }
    return _listed(rows)


def _nobody(name: str, scenario: Scenario) -> str:
    """Which releases were tested, if none has the bug; empty if none was tested."""
    free = [v for v, status in tested(name).items() if status is Status.NOT_AFFECTED]
    if not free:
        return ""
    those = f"{scenario.subject} {free[0]} to {free[-1]}"
    return f"no: none of the {len(free)} releases that we tested has the bug ({those})"


def _shown(name: str) -> str:
    lines = [f"    python -m harness run scenario={name}"]
    script = f"[{catalog.REPORT_SCRIPT}]({catalog.REPORT_SCRIPT})"
    file = catalog.folder(name) / catalog.REPORT_SCRIPT
    if file.is_file():
        torch = re.search(r"^\s*(import|from) torch\b", file.read_text(encoding="utf-8"), re.M)
        needs = f"needs only {'torch and ' if torch else ''}the libraries named at its top"
        lines += ["", f"{script} shows the bug without this project. It {needs}. {PRINTS}"]
    return "\n".join(lines)


def _listed(rows: Mapping[str, str]) -> str:
    return markdown_table(["", ""], [[row, markdown(text)] for row, text in rows.items() if text])


def _facts(name: str, scenario: Scenario) -> str:
    chosen = {v: {**scenario.pins, **scenario.pins_of(v)} for v in scenario.variants}
    lanes = " or ".join(lane.value.upper() for lane in scenario.lanes)
    rows = {
        "report": "<br>".join(map(_linked, scenario.report)),
        "fix": _linked(scenario.fix),
        "documented symptom": scenario.symptom,
        "releases that run here": releases(chosen),
        "commits": "<br>".join(
            f"[{c.commit[:12]}]({c.link}) of {c.day} {c.did}: {_with_pull(c)}"
            for c in commits.of(name)
        ),
        "runs on": f"{count(scenario.ranks, 'rank')}, {lanes}",
    }
    if not scenario.known_upstream:
        files = (catalog.REPORT, catalog.REPORT_SCRIPT)
        rows["for the maintainers"] = ", ".join(f"[{file}]({file})" for file in files)
    return _listed(rows)


def _with_pull(change: Change) -> str:
    """The title of a commit, with a link to the pull request that it names."""
    return re.sub(r"#(\d+)", f"[#\\1]({change.pull})", change.title, count=1)


def _linked(text: str) -> str:
    return LINK.sub(r"<\g<0>>", text)


def _variants(scenario: Scenario) -> str:
    rows = [
        [f"`{name}`", scenario.about(name), "on" if v.triggers else "off", str(v.expect)]
        for name, v in scenario.variants.items()
    ]
    return markdown_table(["variant", "what it is", "trigger", "expected outcome"], rows)


def _parameters(module: Any) -> str:
    found = knobs(module.Params)
    if not found:
        return "None."
    rows = [[f"`scenario.{k.name}={k.default}`", meaning(k)] for k in found]
    return markdown_table(["parameter and default", "meaning"], rows)


def _judgement(module: Any, name: str) -> str:
    """What detect and exercised look for, and which other checks miss the bug."""
    lines = [
        f"- *The symptom:* {_doc(_documented(module.detect))}",
        f"- *The trigger:* {_doc(module.exercised)}",
    ]
    checks = _insufficient_checks(name)
    if checks:
        lines += [
            "",
            "These checks miss the bug. Each line says when the check would give an alarm, and "
            "whether it did so in the newest run on GPUs:",
            "",
        ]
        lines += [f"- {name}: {alarm(check)}" for name, check in checks.items()]
    return "\n".join(lines)


def _documented(detect: Any) -> Any:
    """The function with the docstring of the symptom: an oracle's is that of its scenario."""
    return getattr(getattr(detect, "__self__", None), "documented", detect)


def _doc(function: Any) -> str:
    return markdown(" ".join((inspect.getdoc(function) or "").split()))


def _insufficient_checks(name: str) -> Mapping[str, bool]:
    found = (run_folder.insufficient_checks(content) for _, content in run_folder.kept(name))
    return next(filter(None, found), {})


def _by_hand(name: str) -> str:
    file = catalog.folder(name) / PAGE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    _, begin, rest = text.partition(BY_HAND)
    kept = rest.partition(END)[0].strip("\n") if begin else ""
    return "\n".join([BY_HAND, *([kept] if kept else []), END])


def _evidence(name: str) -> Iterator[str]:
    kept = run_folder.kept(name)
    if kept:
        yield "## Runs on GPUs"
    for stem, run in kept:
        chosen = {variant: trial["pins"] for variant, trial in run["trials"].items()}
        where = ", ".join(dict.fromkeys(run["machine"]["gpus"])) or "CPU"
        yield (
            f"[{stem}](evidence/{stem}.json): {releases(chosen)}; {where}, torch "
            f"{run['machine']['torch']}, {run['started'][:10]}: **{run['result']['verdict']}**"
        )
        yield markdown_table(
            ["variant", "outcome", "finding"], list(map(_trial, run["result"]["trials"]))
        )


def _trial(trial: Mapping[str, Any]) -> list[str]:
    lines = trial["reason"].splitlines() or [""]
    for old, new in OLD_WORDS.items():
        lines[0] = lines[0].replace(old, new)
    reason = "<br>".join(lines[:4]) + (" ..." if len(lines) > 4 else "")
    return [f"`{trial['variant']}`", str(Outcome(trial["outcome"])), reason]


def _affected(name: str) -> Iterator[str]:
    if cells := affected.of(name):
        yield affected.section(name, cells)


def _mutations(name: str) -> Iterator[str]:
    file = catalog.folder(name) / MUTATIONS
    if file.is_file():
        yield (
            "## Mutations\n\nMutations are edits that put other faults into the same code. The "
            "scenario must report them neither as this bug nor as clean, but as inconclusive. "
            f"`python -m tests.mutations {name}` runs them on the CPU."
        )
        rows = json.loads(file.read_text(encoding="utf-8")).values()
        columns = ["put into", "the mutation", "outcome", "reason"]
        cells = [[f"`{r['variant']}`", r["about"], r["outcome"], r["reason"]] for r in rows]
        yield markdown_table(columns, cells)


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
