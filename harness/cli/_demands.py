"""What the folder of a scenario must have before the scenario may join the catalogue."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.bugs import catalog, periods, pins, remedies, result_file
from harness.bugs.api.spec import BUGGY, FIXED, UNDECIDED, Lane, Outcome, Scenario, Verdict
from harness.publish import markdown_pages
from harness.rank import run_folder
from harness.releases import locks, resolution
from harness.run.grade import grade
from harness.system.errors import HarnessError
from harness.system.text import count

LONGEST_TITLE = 110
"""Characters of a title."""
LONGEST_SCRIPT = 40
"""Lines of a script for maintainers."""


class Missing(Exception):
    """A demand that a scenario does not meet; the message says what is missing."""


Demand = Callable[[str, Scenario], str]
"""Gets a scenario's name and metadata; returns what it found, or raises Missing."""


def story(name: str, scenario: Scenario) -> str:
    """The docstring tells the story, and its first line is the title"""
    texts = {
        "the docstring": catalog.story(name),
        "fix": scenario.fix,
        "symptom": scenario.symptom,
        "trigger": scenario.trigger,
        "remedy": scenario.remedy or remedies.of(name),
        "report": "" if not all(scenario.report) else " ".join(scenario.report),
    }
    for field, text in texts.items():
        if not text or UNDECIDED in text:
            raise Missing(f"{field} is not written yet")
    if len(scenario.title) > LONGEST_TITLE:
        raise Missing(f"the title has {len(scenario.title)} characters, more than {LONGEST_TITLE}")
    if catalog.story(name).partition("\n")[0].rstrip(".") != scenario.title:
        raise Missing("the first line of the docstring is not the title in bug.toml")
    if len(catalog.story(name).splitlines()) < 3:
        raise Missing("the docstring has only a title")
    return scenario.title


def harm(name: str, scenario: Scenario) -> str:
    """``harm`` says what the bug does to a run, and ``visibility`` how a user can notice it"""
    for field, value in (("harm", scenario.harm), ("visibility", scenario.visibility)):
        if value == UNDECIDED:
            choices = "HARMS" if field == "harm" else "VISIBILITIES"
            raise Missing(f"{field} is not written yet: choose one of {choices} in api/spec.py")
    return f"{scenario.harm}, {scenario.visibility}"


def variants(name: str, scenario: Scenario) -> str:
    """``buggy`` shows the symptom, ``fixed`` is clean, and so is a control without the trigger"""
    for variant, expected in ((BUGGY, Outcome.SYMPTOM), (FIXED, Outcome.CLEAN)):
        if variant not in scenario.variants or scenario.variants[variant].expect is not expected:
            raise Missing(f"{variant} must expect {expected}")
    clean = [name for name, v in scenario.variants.items() if v.expect is Outcome.CLEAN]
    if clean == [FIXED]:
        raise Missing("there is no control: a clean variant with the bug, but without its trigger")
    for defect in scenario.variants[FIXED].defects:
        if "our remedy" not in defect.about:
            raise Missing("an edit in fixed is a remedy of ours: its text must say 'our remedy'")
    return ", ".join(scenario.variants)


def files(name: str, scenario: Scenario) -> str:
    """``files`` or a defect names the files with the bug"""
    if scenario.pins and not scenario.watched:
        raise Missing("neither files nor a defect names a file")
    return ", ".join(scenario.watched)


def lock_files(name: str, scenario: Scenario) -> str:
    """``locks/`` has a lock file for each set of releases that a variant runs on"""
    pins_by_path = {}
    for variant in scenario.variants:
        chosen = pins.complete(scenario, scenario.pins_of(variant))
        if set(chosen) - {pins.TORCH}:
            pins_by_path[locks.file(catalog.folder(name) / "locks", chosen)] = chosen
    paths = set((catalog.folder(name) / "locks").glob("*"))
    for path in sorted(pins_by_path.keys() ^ paths):
        problem = "is missing" if path in pins_by_path else "fits no variant"
        raise Missing(f"locks/{path.name} {problem}: python -m harness lock {name}")
    base = set(resolution.BASE) - {"setuptools"}
    for path, chosen in pins_by_path.items():
        lock = locks.read(path)
        for versions in map(lock.versions, lock.pythons):
            if not versions.items() >= chosen.items() or versions.keys() & base:
                raise Missing(f"locks/{path.name} does not fit: python -m harness lock {name}")
    return count(len(pins_by_path), "file")


def picture(name: str, scenario: Scenario) -> str:
    """``picture`` shows the bug on the site"""
    if not hasattr(catalog.load(name), "picture"):
        raise Missing("scenario.py has no picture")
    return "yes"


def statuses(name: str, scenario: Scenario) -> str:
    """``results.jsonl`` says which releases have the bug, and has a result for that of ``buggy``"""
    if scenario.pins and not result_file.statuses(name):
        raise Missing("no release was tested: python -m harness matrix or bisect, with --record")
    if scenario.pins and not is_tested(name, scenario):
        pin = f"pins.{scenario.subject}={scenario.release_of(BUGGY)}"
        raise Missing(f"the release of buggy was not tested: matrix scenario={name} {pin} --record")
    return count(len(result_file.statuses(name)), "release")


def is_tested(name: str, scenario: Scenario) -> bool:
    """Whether the release of ``buggy`` has a result that is certain."""
    status = periods.tested(name).get(scenario.release_of(BUGGY))
    return status is not None and status.certain


def recorded_run(name: str, scenario: Scenario) -> str:
    """``recorded.tar.xz`` is a reproduced CPU run; a bug for GPUs has one in ``results.jsonl``"""
    if Lane.CPU not in scenario.lanes:
        if not (runs := result_file.kept_runs(name)):
            raise Missing("no evidence: python -m harness evidence RUN NAME")
        return count(len(runs), "run")
    with run_folder.recorded(name) as run:
        if run is None:
            raise Missing("no recorded run: python -m tests.record RUN")
        try:
            verdict = grade(run).verdict
        except HarnessError as error:
            raise Missing(str(error)) from None
    if verdict is not Verdict.REPRODUCED:
        raise Missing(f"the recorded run is graded as {verdict}")
    return str(verdict)


def mutations(name: str, scenario: Scenario) -> str:
    """A bug that an edit puts back has ``mutations.py``; each mutation is inconclusive"""
    folder = catalog.folder(name)
    if not (folder / "mutations.py").is_file():
        if scenario.variants[BUGGY].defects:
            raise Missing("no mutations.py")
        return "none: two releases show the bug"
    _refuse_unfinished(folder / "mutations.py")
    if not (folder / catalog.MUTATIONS).is_file():
        raise Missing(f"they were never run: python -m tests.mutations {name}")
    rows = json.loads((folder / catalog.MUTATIONS).read_text(encoding="utf-8")).values()
    conclusive_mutations = [row["about"] for row in rows if row["outcome"] != Outcome.INCONCLUSIVE]
    if conclusive_mutations:
        raise Missing(f"not inconclusive: {conclusive_mutations[0]}")
    return count(len(rows), "mutation")


def report(name: str, scenario: Scenario) -> str:
    """``report.py`` shows the bug. If upstream does not know the bug, there is ``report.md``"""
    folder = catalog.folder(name)
    if not (folder / catalog.REPORT_SCRIPT).is_file():
        raise Missing(f"there is no {catalog.REPORT_SCRIPT}")
    if not scenario.known_upstream and not catalog.has_report(name):
        raise Missing(f"known_upstream is False, and there is no {catalog.REPORT}")
    _refuse_unfinished(folder / catalog.REPORT_SCRIPT)
    lines = len((folder / catalog.REPORT_SCRIPT).read_text(encoding="utf-8").splitlines())
    if lines > LONGEST_SCRIPT:
        raise Missing(f"{catalog.REPORT_SCRIPT} has {lines} lines, more than {LONGEST_SCRIPT}")
    return count(lines, "line")


def _refuse_unfinished(file: Path) -> None:
    if UNDECIDED in file.read_text(encoding="utf-8"):
        raise Missing(f"{file.name} is not written yet")


def page(name: str, scenario: Scenario) -> str:
    """``README.md`` is up to date, and its section written by hand is not empty"""
    file = catalog.folder(name) / markdown_pages.PAGE
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    if text != markdown_pages.of_bug(name):
        raise Missing(f"README.md is out of date: python -m harness pages {name}")
    written = text.partition(markdown_pages.BY_HAND)[2].partition(markdown_pages.END)[0].strip()
    if not written:
        raise Missing("nothing is written between the marks 'by hand'")
    return count(len(written.splitlines()), "line") + " by hand"


DEMANDS: tuple[Demand, ...] = (
    story,
    harm,
    variants,
    files,
    picture,
    lock_files,
    recorded_run,
    statuses,
    mutations,
    report,
    page,
)
"""In the order of CONTRIBUTING.md: the page comes last, for it shows all the others."""


def text(demand: Demand) -> str:
    """The text of a demand, as in CONTRIBUTING.md."""
    return (demand.__doc__ or "").replace("``", "`")


def checked(name: str) -> Iterator[tuple[str, bool, str]]:
    """Each demand, whether the scenario meets it, and what was found or is missing."""
    for demand in DEMANDS:
        yield text(demand), *met(demand, name)


def met(demand: Demand, name: str) -> tuple[bool, str]:
    """Whether the scenario meets a demand, and what was found or is missing."""
    try:
        return True, demand(name, catalog.scenario(name))
    except Missing as missing:
        return False, str(missing)
