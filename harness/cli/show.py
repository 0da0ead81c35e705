"""print one scenario: its story, variants, parameters, releases, and the edit or fix as a diff

python -m harness show bf16_clip
python -m harness show bf16_clip pins.deepspeed=0.15.4
python -m harness show pipeline_clip_norm --patch > fix.diff

--patch prints what we propose to the maintainers, as a diff of the release with the bug.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from rich.console import Console

from harness.bugs import catalog, pins, remedies
from harness.bugs.api.spec import BUGGY, FIXED, Scenario
from harness.cli import Arguments, pin
from harness.rank import shims
from harness.releases import overlay, resolution
from harness.releases.edits import diff
from harness.run.verdict_text import releases
from harness.system.errors import ExitCode, UserError, unknown
from harness.system.installation import as_typed
from harness.system.machine import cache_folder
from harness.system.terminal import terminal


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("scenario")
    parser.add_argument(
        "pins", nargs="*", metavar="pins.NAME=VERSION", help="other releases to show it on"
    )
    parser.add_argument("--patch", action="store_true", help="print our remedy alone, as a diff")
    options = parser.parse_intermixed_args(arguments)
    pins_of_user = dict(map(pin, options.pins))
    scenario = catalog.scenario(options.scenario)
    for name in pins_of_user:
        if name not in scenario.pins:
            raise UserError(unknown(f"pin of {options.scenario}", name, scenario.pins))
    pins.complete(scenario, pins_of_user)  # refuses a bad version before anything is printed
    if options.patch:
        print(remedy(options.scenario, pins_of_user), end="")
        return ExitCode.AS_EXPECTED
    console = terminal()
    _print_story(console, options.scenario, scenario)
    _print_upstream(console, scenario, pins_of_user)
    return ExitCode.AS_EXPECTED


def remedy(name: str, pins_of_user: Mapping[str, str]) -> str:
    """What we propose to the maintainers of a bug, as a unified diff of ``buggy``'s releases, or of
    the user's where pinned. Raises UserError if we propose no edit."""
    scenario, edits = catalog.scenario(name), catalog.proposal(name)
    if not edits:
        choices = [each for each in catalog.sound() if catalog.proposal(each)]
        raise UserError(f"we propose no edit for {name}. Choices: {', '.join(choices)}.")
    stack = resolution.stack(scenario, _pins(scenario, pins_of_user, BUGGY), cache_folder())
    with overlay.awaited(stack, edits, cache_folder()) as borrowed_overlay:
        return re.sub(
            "^([+]{3}) defect/", r"\1 patched/", borrowed_overlay.diff, flags=re.MULTILINE
        )


def _print_story(console: Console, name: str, scenario: Scenario) -> None:
    console.print(catalog.story(name))
    source, *others = scenario.report
    console.print(f"\nreport    {source}", *(f"\n          {report}" for report in others), sep="")
    console.print(f"fix       {scenario.fix}\nsymptom   {scenario.symptom}")
    console.print(f"trigger   only with {scenario.trigger}")
    console.print(f"remedy    {as_typed(remedies.of(name))}")
    console.print(f"ranks     {scenario.ranks} (lanes: {', '.join(scenario.lanes)})\n\nvariants")
    for variant, v in scenario.variants.items():
        console.print(f"  {variant:<10} expected {v.expect!s:<8} {scenario.about(variant)}")
    console.print("\nparameters")
    for parameter, knob in scenario.knobs.items():
        console.print(f"  scenario.{parameter}={knob.default}  {knob.meaning}")


def _print_upstream(console: Console, scenario: Scenario, pins_of_user: Mapping[str, str]) -> None:
    cache = cache_folder()
    chosen = {v: _pins(scenario, pins_of_user, v) for v in scenario.variants}
    stack = resolution.stack(scenario, chosen[BUGGY], cache)
    day = f"; dependencies of {stack.date}" if stack.date else ""
    console.print(f"\npins      {releases(chosen)}{day}")
    for lane in scenario.lanes:
        console.print(f"shims on the {lane} lane")
        for point in shims.needed(chosen[BUGGY], lane):
            console.print(f"  {point.name}: {point.why}")
    for defect in scenario.defects:
        console.print(f"\ndefect {defect.name}: {defect.about}\n")
        with overlay.awaited(stack, (defect,), cache) as borrowed_overlay:
            console.print(borrowed_overlay.diff, end="")
    if scenario.files and chosen[BUGGY] != chosen[FIXED]:
        before, after = (pins.describe(chosen[variant]) for variant in (BUGGY, FIXED))
        console.print(f"\nwhat changed from {before} to {after}\n")
        for text in changes(scenario, chosen, cache):
            console.print(text, end="")


def _pins(scenario: Scenario, pins_of_user: Mapping[str, str], variant: str) -> dict[str, str]:
    return pins.complete(scenario, {**scenario.pins_of(variant), **pins_of_user})


def changes(
    scenario: Scenario, chosen: Mapping[str, Mapping[str, str]], cache: Path
) -> Iterator[str]:
    """Diffs of the files with the bug, from buggy's release to fixed's."""
    stacks = {v: resolution.stack(scenario, chosen[v], cache) for v in (BUGGY, FIXED)}
    with (
        overlay.awaited(stacks[BUGGY], (), cache) as buggy,
        overlay.awaited(stacks[FIXED], (), cache) as fixed,
    ):
        for file in scenario.files:
            paths = [lent.site / file for lent in (buggy, fixed)]
            before, after = (p.read_text(encoding="utf-8") if p.is_file() else "" for p in paths)
            yield diff(file, before, after, BUGGY, FIXED)
