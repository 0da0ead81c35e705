"""write the start of a new scenario, and its page

python -m harness new my_bug --pin deepspeed==0.19.8
"""

from __future__ import annotations

import keyword
from collections.abc import Mapping, Sequence
from pathlib import Path

import scenarios
from harness import catalog
from harness.commands import Arguments, pages, pin
from harness.files import write_whole
from harness.machine import cache_folder
from harness.report import terminal
from harness.spec import ExitCode, UserError
from harness.upstream import release_days

TEMPLATE = '''\
"""UNFINISHED: say what goes wrong, in one sentence.

Then who was hit, what it cost, and the root cause. The page begins with this, and so does

    python -m harness show {name}
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.knobs import Knobs, knob
from harness.facts.plan import Kind, Plan, each
from harness.facts.shapes import NUMBER
from harness.spec import Context, Exercise, Finding, Position, Records, Scenario
from harness.spec import affected, unaffected


@dataclass
class Params(Knobs):
    steps: int = knob(3, least=1, about="of training")


SCENARIO = Scenario(
    report=("where it was reported: a link or a citation",),
    fix="the pull request or release that fixed it",
    symptom="the documented symptom, in the words of the report",
    trigger="what a run must do to meet it",
    remedy="what a user who is affected can do",
    pins={pins},
    goes_wrong="other",  # or one of spec.GOES_WRONG
    ranks=2,
    variants={{
        # A release that has the bug, affected("0.29.3"), or a defect that puts it back.
        "buggy": affected(about="the bug"),
        "fixed": unaffected(about="the fix"),
        "control": unaffected(about="the bug, its trigger off", triggers=False),
    }},
)


def plan(at: Position) -> Plan:
    """What a rank is going to record: of each kind its facts, and its steps."""
    return {{"step": Kind({{"sum": NUMBER}}, each(at.params.steps))}}


def run(ctx: Context) -> None:
    """Drive the real library, and write down facts; torch and upstream are imported in here."""
    import torch
    import torch.distributed as dist

    with ctx.phase("init"):
        dist.init_process_group(ctx.lane.backend)
    with ctx.phase("steps"):
        for step in range(1, ctx.params.steps + 1):
            value = torch.full((1,), float(ctx.rank), device=ctx.device)
            dist.all_reduce(value)
            ctx.record("step", step, sum=float(value))


def detect(records: Records) -> Finding | None:
    """The documented symptom, or nothing. It must not know the variant."""
    steps = records.of("step")
    # Until this looks for the symptom, every trial is inconclusive, and that is the truth.
    return Finding(f"UNFINISHED: detect() looks at none of {{len(steps)}} steps", documented=False)


def exercised(records: Records) -> Exercise:
    """Whether the trigger was exercised, and how, or why not: else a clean trial proves nothing."""
    return Exercise(False, "UNFINISHED: exercised() does not look")
'''


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("name", help="like bf16_clip")
    parser.add_argument(
        "--pin",
        action="append",
        default=[],
        metavar="NAME==VERSION",
        help="an upstream release; the first is the one whose bug it is; repeatable",
    )
    options = parser.parse_args(arguments)
    new(options.name, options.pin)
    return ExitCode.AS_EXPECTED


def new(name: str, pins: Sequence[str] = ()) -> None:
    """Write the module and the page of a scenario, whole or not at all.

    Raises UserError for a name in use, and for a release that does not exist.
    """
    plain = name.isidentifier() and name == name.lower() and not name.startswith("_")
    if not plain or keyword.iskeyword(name):
        raise UserError(f"'{name}' is no name for a scenario: write one like bf16_clip")
    if name in ("all", *catalog.names()):
        raise UserError(f"there is a scenario '{name}' already, or the name is taken")
    chosen = dict(pin(word, "==", "deepspeed==0.19.8") for word in pins)
    for package, version in chosen.items():
        release_days.released(package, version, cache_folder())  # raises if there is none
    upstream_folder = Path(scenarios.__path__[0]) / folder(chosen)
    _make_package(upstream_folder, f'"""Bugs of {next(iter(chosen), "torch")}."""\n')
    _make_package(upstream_folder / name)
    text = TEMPLATE.format(name=name, pins=_literal(chosen))
    write_whole(upstream_folder / name / f"{catalog.MODULE}.py", text)
    catalog.forget()
    pages.write([name])
    terminal().print(
        f"{catalog.file(name)}, its page README.md and a row in docs/bugs.md: it is "
        "unfinished, but it runs:\n"
        f"  python -m harness run scenario={name}\n"
        f"  python -m harness pages {name}             # after each change of its text\n"
        f"  python -m harness admit scenario={name}    # once it is finished\n"
        "CONTRIBUTING.md goes through its parts."
    )


def folder(pins: Mapping[str, str]) -> str:
    """The folder of the scenarios of an upstream: that of the first pin, or torch's."""
    return next(iter(pins), "torch").replace("-", "_")


def _make_package(folder: Path, docstring: str = "") -> None:
    folder.mkdir(exist_ok=True)
    if not (folder / "__init__.py").exists():
        write_whole(folder / "__init__.py", docstring)


def _literal(pins: Mapping[str, str]) -> str:
    return "{" + ", ".join(f'"{name}": "{version}"' for name, version in pins.items()) + "}"
