"""run your own detector on every bug, and where the bug is not

    python -m harness score my_detector.py:Detector
    python -m harness score my_detector.py:Detector scenario=torch seed=0,1,2
    python -m harness score replicas gradients usual/nan --json scores.json
    python -m harness score --cost replicas gradients
    python -m harness score --list

A detector is a class with attach(model, optimizer, loader, group=...), step(number) and, if it
needs them, save(path), load(path) and close(). step returns None, or an alarm: a text. A bug counts
as detected if the detector gives an alarm with the bug, and none in any variant without it.
docs/detectors.md explains the interface and has the scores of ours.

Overrides are as for run: scenario=A,B or a package (default: all), seed=A,B, launch=cpu, runs=DIR,
jobs=N.

exit codes: 0 no false alarm, 1 a false alarm or a changed training, 2 a mistake in the command, 3
nothing could be watched.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from harness import catalog
from harness.api.spec import BUGGY, HARMS
from harness.cli import Arguments
from harness.config import command_line
from harness.config.run_config import ALL, DetectorConfig, RunConfig
from harness.score import cost, detectors
from harness.score.others import without_others
from harness.score.scores import Found, Score
from harness.score.scoring import Scoring, scored, steps_of, watched_variants
from harness.system.errors import ExitCode, UserError
from harness.system.files import write_whole, writing
from harness.system.installation import refuse_without_torch
from harness.system.terminal import Progress, count, table, terminal
from harness.system.text import short

STYLES = {Found.DETECTED: "green", Found.FALSE_ALARM: "red", Found.DISTURBS: "red"}


def main(arguments: list[str]) -> int:
    options = _parser().parse_intermixed_args(arguments)
    overrides = [word for word in options.words if "=" in word]
    words = [word for word in options.words if "=" not in word]
    names, seeds, others = _chosen(overrides)
    if options.list:
        _print_scenarios(names)
        return ExitCode.AS_EXPECTED
    if not words:
        raise UserError("name a detector: FILE.py:CLASS, or one of " + ", ".join(detectors.OURS))
    refuse_without_torch("score")
    found = [detectors.named(word) for word in dict.fromkeys(words)]
    if options.cost:
        _print_costs(found)
        return ExitCode.AS_EXPECTED
    with _runs(others) as runs:
        configs = [_config(name, [*others, *runs]) for name in names]
        scores = _scored(Scoring(found, configs, seeds))
    for detector in found:
        terminal().print(
            _summary(detector.name, [s for s in scores if s.detector == detector.name])
        )
    if len(names) > 1:
        _print_harms(found, scores)
    if options.json:
        with writing(options.json, "--json"):
            write_whole(options.json, json.dumps([asdict(one) for one in scores], indent=1) + "\n")
    return exit_code(scores)


def exit_code(scores: Sequence[Score]) -> int:
    found = Counter(score.found for score in scores)
    if found[Found.FALSE_ALARM] or found[Found.DISTURBS]:
        return ExitCode.NOT_AS_EXPECTED
    answered = found[Found.DETECTED] + found[Found.MISSED]
    return ExitCode.AS_EXPECTED if answered else ExitCode.INCONCLUSIVE


def _parser() -> Arguments:
    parser = Arguments(__name__)
    parser.add_argument("words", nargs="*", metavar="DETECTOR|KEY=VALUE")
    parser.add_argument(
        "--list", action="store_true", help="the scenarios, and what there is to see"
    )
    parser.add_argument(
        "--cost", action="store_true", help="measure the time of a step instead, on 34 M parameters"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the scores")
    return parser


def _chosen(overrides: Iterable[str]) -> tuple[list[str], list[int], list[str]]:
    """The scenarios, the seeds, and the other overrides."""
    names, seeds, others = list(catalog.sound()), [0], []
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "scenario":
            names = [name for one in value.split(",") for name in _scenarios(one)]
        elif key == "seed":
            seeds = _seeds(value)
        elif key == "variant" or key.startswith(("pins.", "scenario.")):
            raise UserError(f"score runs all variants on their own releases: leave {word} out")
        else:
            others.append(word)
    return list(dict.fromkeys(names)), seeds, others


def _scenarios(word: str) -> list[str]:
    if word == ALL:
        return list(catalog.sound())
    if of_package := catalog.of_package(word):
        return list(of_package)
    catalog.load(word)  # raises, with the choices, if there is none
    return [word]


def _seeds(value: str) -> list[int]:
    try:
        return list(dict.fromkeys(int(one) for one in value.split(",")))
    except ValueError:
        raise UserError(f"seed={value}: write whole numbers, such as seed=0,1,2") from None


@contextmanager
def _runs(overrides: Iterable[str]) -> Iterator[list[str]]:
    """The override with the folder of the runs: a temporary one, unless the user names one."""
    if any(word.startswith("runs=") for word in overrides):
        yield []
        return
    with tempfile.TemporaryDirectory(prefix="score-") as folder:
        yield [f"runs={folder}"]


def _config(name: str, words: Sequence[str]) -> RunConfig:
    return command_line.compose([f"scenario={name}", "variant=all", *words])


def _scored(scoring: Scoring) -> list[Score]:
    console = terminal()
    total, done = len(scoring.configs) * len(scoring.detectors), 0
    with Progress(console) as progress:
        progress.say("scoring")

        def each(one: Score) -> None:
            nonlocal done
            done += 1
            console.print(_line(one), style=STYLES.get(one.found))
            progress.tally(f"{done}/{total}")

        found = scored(scoring, each)
    judged = without_others(found)
    for before, one in zip(found, judged, strict=True):
        if one is not before:
            console.print(_line(one), style=STYLES.get(one.found))
    return judged


def _line(one: Score) -> str:
    at = (
        "" if one.step is None else f" at step {one.step}" if one.step else " before the first step"
    )
    at += f", {count(one.late, 'step')} late" if one.late and one.late > 0 else ""
    why = f": {short(one.reason)}" if one.reason else ""
    return f"  {one.scenario}, {one.detector}: {one.found}{at}{why}"


def _summary(name: str, scores: Sequence[Score]) -> str:
    found = Counter(score.found for score in scores)
    parts = [f"{found[kind]} {kind}" for kind in Found if found[kind]]
    parts = [part + "s" if part.endswith("alarm") and part[:2] != "1 " else part for part in parts]
    late = [max(0, s.late) for s in scores if s.late is not None]
    calls = sum(t.calls for s in scores for t in s.trials)
    seconds = sum(t.seconds for s in scores for t in s.trials)
    text = f"{name}: {count(len(scores), 'bug')}: {', '.join(parts)}"
    text += f"; {statistics.median(late):.0f} steps late (median)" if late else ""
    return text + (f"; {1000 * seconds / calls:.2f} ms a step" if calls else "")


def _print_harms(found: Sequence[DetectorConfig], scores: Sequence[Score]) -> None:
    """How many of the bugs of each kind that it could watch each detector found."""
    harms = [h for h in HARMS if any(catalog.scenario(s.scenario).harm == h for s in scores)]
    rows = []
    for detector in found:
        cells = []
        for harm in harms:
            of = [
                s.found
                for s in scores
                if s.detector == detector.name and catalog.scenario(s.scenario).harm == harm
            ]
            seen = len(of) - of.count(Found.NOT_APPLICABLE)
            cells.append(f"{of.count(Found.DETECTED)} of {seen}")
        rows.append([detector.name, *cells])
    terminal().print(table("Detected, by what the bug does", ["detector", *harms], rows))


def _print_costs(found: Sequence[DetectorConfig]) -> None:
    step, costs = cost.measured(found)
    rows = [[one.detector, f"{one.milliseconds:.2f}", f"{one.share:.2%}"] for one in costs]
    title = f"a step takes {step:.0f} ms"
    terminal().print(table(title, ["detector", "ms a step", "of a step"], rows))


def _print_scenarios(names: Iterable[str]) -> None:
    rows = []
    for name in names:
        spec = catalog.scenario(name)
        clean = ", ".join(watched_variants(name)[1:])
        numbers = [str(spec.ranks_of(BUGGY)), str(len(spec.launches)), str(steps_of(name))]
        rows.append([name, next(iter(spec.pins), "torch"), *numbers, clean])
    columns = ["scenario", "package", "ranks", "launches", "steps", "variants without the bug"]
    terminal().print(table("", columns, rows))
