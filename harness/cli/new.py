"""start a new scenario in a folder of its own: it runs, and says that it is unfinished

    python -m harness new my_bug --buggy accelerate==0.29.3 --fixed 0.30.0
    python -m harness new my_bug --buggy deepspeed==0.15.2        # an edit will put the bug back

--fixed is a release without the bug.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.utils import canonicalize_name, canonicalize_version

import scenarios
from harness.bugs import bug_file, catalog, packages
from harness.bugs.api.spec import HARMS, VISIBILITIES
from harness.cli import Arguments, pages, pin, pins_of
from harness.releases import releases
from harness.system.errors import ExitCode, UserError
from harness.system.files import write_whole
from harness.system.machine import cache_folder
from harness.system.terminal import terminal

BUG = """\
title = "UNFINISHED: the wrong behaviour in one sentence, as in the docstring of scenario.py"
report = ["UNFINISHED: links or citations of the report"]
fix = "UNFINISHED: a link to the fix"
symptom = "UNFINISHED: what the report says that users see"
trigger = "UNFINISHED: what a run must do to meet the bug, after 'only with'"
remedy = "UNFINISHED: a way around the bug, in the imperative; omit it if there is none"
harm = "UNFINISHED"  # {harms}
visibility = "UNFINISHED"  # {visibilities}
{files}
[pins]
{pins}
[params]
steps = {{ default = 3, least = 1, about = "of training" }}

{variants}"""

FILES = """\
files = [
    # UNFINISHED: those with the bug, of the files that the fix changed
]
"""

TEMPLATE = '''\
"""UNFINISHED: the wrong behaviour in one sentence.

UNFINISHED: who was hit, what it cost, and the root cause.
"""

from __future__ import annotations

from harness.bugs import api


def plan(at: api.Position) -> api.Plan:
    """UNFINISHED: the records that a rank is going to write, and the shape of each fact."""
    return {"step": api.Kind({"sum": api.NUMBER}, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """UNFINISHED: drive the real library and record facts. Import torch and upstream in here."""
    import torch
    import torch.distributed as dist

    with ctx.phase("init"):
        dist.init_process_group(ctx.lane.backend)
    with ctx.phase("steps"):
        for step in range(1, ctx.params.steps + 1):
            value = torch.full((1,), float(ctx.rank), device=ctx.device)
            dist.all_reduce(value)
            ctx.record("step", step, sum=float(value))


def detect(records: api.Records) -> api.Finding | None:
    """UNFINISHED: the documented symptom, or None. It does not know the variant."""
    # Every trial is inconclusive until this function looks for the symptom.
    return api.Finding("UNFINISHED: detect() does not look at the records", documented=False)


def exercised(records: api.Records) -> api.Exercise:
    """UNFINISHED: how the trigger occurred, or why it did not."""
    return api.Exercise(False, "UNFINISHED: exercised() does not look at the records")
'''

REPORT = '''\
"""UNFINISHED: does the library do what it should? One question.

Needs {libraries}, and no GPU. The exit code is 3 if the bug is there."""

if __name__ == "__main__":
    is_wrong = False  # UNFINISHED: call the library, and compare
    print("UNFINISHED: what the library did, and what is right")
    print("WRONG:" if is_wrong else "right:", "UNFINISHED")
    raise SystemExit(3 if is_wrong else 0)
'''

MUTATIONS = '''\
"""UNFINISHED: other faults of the same code, see scenarios/common/mutation.py.

Delete this file if ``buggy`` is a release as published.
"""
'''

PAIR = """\
[variants.buggy]

[variants.fixed]
release = "{fixed}"

[variants.control]
about = "{buggy}, UNFINISHED"
# UNFINISHED: the same release, its trigger off, for example params = {{ seeding = "common" }}.
triggers = false
"""
EDIT = """\
# UNFINISHED: an edit puts the bug back, see scenarios/deepspeed/bf16_clip/bug.toml.
[variants.buggy]
about = "UNFINISHED: the bug"

[variants.fixed]
about = "UNFINISHED: without the bug"

[variants.control]
about = "UNFINISHED: the bug, its trigger off"
triggers = false
"""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("name", help="of the scenario, such as bf16_clip")
    parser.add_argument(
        "--buggy",
        metavar="NAME==VERSION",
        help="the package with the bug, and a release that has it",
    )
    parser.add_argument("--fixed", metavar="VERSION", help="a release of it without the bug")
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        help="another package whose release matters; all others are chosen by date; repeatable",
    )
    options = parser.parse_args(arguments)
    if options.fixed and not options.buggy:
        raise UserError("--fixed needs --buggy: name the package there, as in accelerate==0.29.3")
    words = [*([options.buggy] if options.buggy else []), *options.pin]
    chosen = pins_of(words, "==", "deepspeed==0.19.8")
    if options.fixed:
        pin(f"fixed=={options.fixed}", "==", "--fixed 0.19.8")
        if canonicalize_version(options.fixed) == canonicalize_version(next(iter(chosen.values()))):
            raise UserError(
                f"--fixed {options.fixed} is the release of --buggy {options.buggy}: name another"
            )
    new(options.name, chosen, options.fixed)
    return ExitCode.AS_EXPECTED


def new(name: str, chosen: Mapping[str, str], fixed: str | None = None) -> None:
    """Write the folder of a scenario with all files that somebody has to finish, or nothing.

    ``chosen`` are the pins, the package with the bug first; ``fixed`` is another release of that.
    Raises UserError for a name in use, and for a release that does not exist.
    """
    _refuse_name(name, chosen)
    subject = next(iter(chosen), None)
    for package, version in [*chosen.items(), *([(subject, fixed)] if subject and fixed else [])]:
        releases.released(package, version, cache_folder())  # raises if there is none
    parent = parent_folder() / folder(chosen)
    _make_package(parent, f'"""Bugs of {subject or "torch"}."""\n')
    if not (parent / packages.FILE).exists():
        write_whole(parent / packages.FILE, 'repository = "UNFINISHED: OWNER/NAME on GitHub"\n')
    _make_package(parent / name)
    write_whole(parent / name / f"{catalog.MODULE}.py", TEMPLATE)
    bug = BUG.format(
        harms=", ".join(HARMS),
        visibilities=", ".join(VISIBILITIES),
        files=FILES if fixed else "",
        pins="".join(f'{package} = "{version}"\n' for package, version in chosen.items()),
        variants=PAIR.format(buggy=chosen[subject], fixed=fixed) if subject and fixed else EDIT,
    )
    write_whole(parent / name / bug_file.FILE, bug)
    libraries = f"torch and {subject}" if subject else "torch"
    write_whole(parent / name / catalog.REPORT_SCRIPT, REPORT.format(libraries=libraries))
    if fixed is None:
        write_whole(parent / name / "mutations.py", MUTATIONS)
    catalog.forget()
    pages.write([name])
    terminal().print(
        f"{catalog.file(name)}, and {bug_file.FILE} beside it. It runs, and is unfinished:\n"
        f"  python -m harness run scenario={name}\n"
        f"  python -m harness admit scenario={name} --fix    # says what you must do next\n"
        "CONTRIBUTING.md goes through its parts."
    )


def _refuse_name(name: str, chosen: Iterable[str]) -> None:
    plain = name.isidentifier() and name == name.lower() and not name.startswith("_")
    if not plain or keyword.iskeyword(name):
        raise UserError(f"'{name}' is no name for a scenario: write one like bf16_clip")
    if name in catalog.names():
        raise UserError(f"the scenario '{name}' exists already: choose another name")
    if name == catalog.ALL:
        raise UserError("'all' means every scenario: choose another name")
    packages = {*catalog.subjects(), *catalog.upstreams(), *chosen}
    if name in {canonicalize_name(package).replace("-", "_") for package in packages}:
        raise UserError(f"'{name}' is a package: choose another name")


def parent_folder() -> Path:
    """The folder that has a folder for each upstream."""
    return Path(scenarios.__path__[0])


def folder(pins: Mapping[str, str]) -> str:
    """The folder of an upstream's scenarios, named after the first pin, or torch."""
    return next(iter(pins), "torch").replace("-", "_")


def _make_package(folder: Path, docstring: str = "") -> None:
    folder.mkdir(exist_ok=True)
    if not (folder / "__init__.py").exists():
        write_whole(folder / "__init__.py", docstring)
