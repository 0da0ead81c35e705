"""A new scenario: a module that runs as it is, and says that it is not finished.

python -m harness new my_bug --pin deepspeed==0.19.8
"""

from __future__ import annotations

import keyword
import time
from collections.abc import Sequence
from pathlib import Path

import scenarios
from harness import catalog
from harness.files import write_whole
from harness.report import terminal
from harness.spec import UserError

TEMPLATE = '''\
"""UNFINISHED: say what goes wrong, in one sentence.

Then who was hit, what it cost, and the root cause. ``python -m harness show {name}`` prints this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.records import Records
from harness.spec import Finding, Outcome, Scenario, Variant

if TYPE_CHECKING:
    from harness.rank import Context


@dataclass
class Params:
    """The knobs: each is an override, scenario.steps=10."""

    steps: int = 3

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError("scenario.steps must be at least 1")


SCENARIO = Scenario(
    title="UNFINISHED: what goes wrong, in one sentence",
    report=("where it was reported: a link or a citation",),
    fix="the pull request or release that fixed it",
    symptom="the documented symptom, in the words of the report",
    trigger="what a run must do to meet it",
    remedy="what a user who is affected can do",
    pins={pins},
    date="{today}",
    ranks=2,
    variants={{
        # A defect that puts the bug back goes here; a release that still has it needs none.
        "buggy": Variant("the bug", Outcome.SYMPTOM),
        "fixed": Variant("the fix", Outcome.CLEAN),
        "control": Variant("the bug, its trigger off", Outcome.CLEAN, triggers=False),
    }},
)


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
    """The documented symptom, or None. It must not know the variant."""
    steps = records.of("step")
    # Until this looks for the symptom, every trial is inconclusive, and that is the truth.
    return Finding(f"UNFINISHED: detect() looks at none of {{len(steps)}} steps", documented=False)


def exercised(records: Records) -> str | None:
    """How the trigger was exercised, or None: without it a clean trial proves nothing."""
    return None
'''


def new(name: str, pins: Sequence[str] = ()) -> None:
    """Write ``scenarios/NAME.py``, whole or not at all; raises UserError for a name in use."""
    file = Path(scenarios.__path__[0]) / f"{name}.py"
    plain = name.isidentifier() and name == name.lower() and not name.startswith("_")
    if not plain or keyword.iskeyword(name):
        raise UserError(f"'{name}' is no name for a scenario: write one like bf16_clip")
    if file.exists() or name in ("all", "workloads", *catalog.names()):
        raise UserError(f"there is a scenario '{name}' already, or the name is taken")
    told = TEMPLATE.format(name=name, pins=_pins(pins), today=time.strftime("%Y-%m-%d"))
    write_whole(file, told)
    terminal().print(
        f"scenarios/{name}.py: unfinished, but it runs:\n"
        f"  python -m harness run scenario={name}\n"
        f"  python -m harness admit scenario={name}    # once it is finished\n"
        "CONTRIBUTING.md goes through its parts."
    )


def _pins(given: Sequence[str]) -> str:
    pins = {}
    for word in given:
        name, sign, version = word.partition("==")
        if not (name and sign and version):
            raise UserError(f"'{word}' is no pin: write one like deepspeed==0.19.8")
        pins[name] = version
    return "{" + ", ".join(f'"{name}": "{version}"' for name, version in pins.items()) + "}"
