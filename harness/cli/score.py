"""run your own detector on every bug, and where the bug is not

    python -m harness score my_detector.py:Detector
    python -m harness score my_detector.py:Detector scenario=torch seed=0,1,2
    python -m harness score samples usual/nan --json scores.json
    python -m harness score guard lane=cpu

A detector is a class with attach(model, optimizer, loader, group=...), step(number) and, if it
needs them, save(path), load(path) and close(). step returns None, or an alarm: a text. A bug counts
as detected if the detector gives an alarm with the bug, and none in any variant without it.
docs/detectors.md explains the interface, and docs/measurements.md has the scores of ours.

Overrides are as for run: scenario=A,B or a package (default: all), seed=A,B, lane=cpu, runs=DIR,
jobs=N.

exit codes: 0 no false alarm, 1 a false alarm or a changed training, 2 a mistake in the command, 3
nothing could be watched.
"""

from __future__ import annotations

import importlib.util
import inspect
import statistics
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.machinery import ModuleSpec
from pathlib import Path

from harness.bugs import catalog
from harness.bugs.api.spec import HARMS
from harness.cli import Arguments, scenarios_in
from harness.cli._values import output_file, refuse_overwriting, write_json
from harness.run import command_line
from harness.run.run_config import SLURM, DetectorConfig
from harness.run.score.scores import Detection, Score, without_others
from harness.run.score.scoring import Scoring, scored
from harness.system.errors import ExitCode, UserError, unknown
from harness.system.installation import refuse_without_torch
from harness.system.terminal import Progress, table, terminal
from harness.system.text import count, short

STYLES = {Detection.DETECTED: "green", Detection.FALSE_ALARM: "red", Detection.DISTURBS: "red"}


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("words", nargs="*", metavar="DETECTOR|KEY=VALUE")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the scores")
    options = parser.parse_intermixed_args(arguments)
    overrides = [word for word in options.words if "=" in word]
    words = [word for word in options.words if "=" not in word]
    selection, overrides = scenarios_in(overrides)
    names = selection or list(catalog.sound())
    seeds, others = _seeds(overrides)
    if not words:
        raise UserError("name a detector: FILE.py:CLASS, or one of " + ", ".join(OURS))
    refuse_overwriting((options.json,), (word.rpartition(":")[0] for word in words))
    refuse_without_torch("score")
    detectors = [detector_named(word) for word in dict.fromkeys(words)]
    if sum(detector.module == GUARD for detector in detectors) > 1:
        raise UserError("score guard and guard/budget one at a time: a process has one guard")
    with tempfile.TemporaryDirectory(prefix="score-") as folder:
        words = ["variant=all", f"runs={folder}", *others]  # unless the user names another folder
        configs = [command_line.compose([f"scenario={name}", *words]) for name in names]
        if any(config.on.where == SLURM for config in configs):
            raise UserError("score runs on this machine: leave out on=slurm")
        scores = _scored(Scoring(detectors, configs, seeds))
    for detector in detectors:
        terminal().print(
            _summary(detector.name, [s for s in scores if s.detector == detector.name])
        )
    if len(names) > 1:
        _print_harms(detectors, scores)
    write_json(options.json, [asdict(score) for score in scores])
    return exit_code(scores)


def exit_code(scores: Sequence[Score]) -> int:
    counts = Counter(score.found for score in scores)
    if counts[Detection.FALSE_ALARM] or counts[Detection.DISTURBS]:
        return ExitCode.NOT_AS_EXPECTED
    answered = counts[Detection.DETECTED] + counts[Detection.MISSED]
    return ExitCode.AS_EXPECTED if answered else ExitCode.INCONCLUSIVE


def _seeds(overrides: Iterable[str]) -> tuple[list[int], list[str]]:
    """The seeds, and the other overrides."""
    seeds, others = [0], []
    for word in overrides:
        key, _, value = word.partition("=")
        if key == "seed":
            try:
                seeds = list(dict.fromkeys(map(int, value.split(","))))
            except ValueError:
                raise UserError(f"{word}: write whole numbers, such as seed=0,1,2") from None
        elif key == "variant" or key.startswith(("pins.", "scenario.")):
            raise UserError(f"score runs all variants on their own releases: leave {word} out")
        else:
            others.append(word)
    return seeds, others


def _scored(scoring: Scoring) -> list[Score]:
    console = terminal()
    total, scores_done = len(scoring.configs) * len(scoring.detectors), 0
    with Progress(console) as progress:
        progress.say("scoring")

        def report_score(score: Score) -> None:
            nonlocal scores_done
            scores_done += 1
            console.print(_line(score), style=STYLES.get(score.found))
            progress.tally(f"{scores_done}/{total}")

        scores = scored(scoring, report_score)
    judged = without_others(scores)
    for before, score in zip(scores, judged, strict=True):
        if score is not before:
            console.print(_line(score), style=STYLES.get(score.found))
    return judged


def _line(score: Score) -> str:
    at = "" if score.step is None else f" at step {score.step}"
    at = " before the first step" if score.step == 0 else at
    at += f", {count(score.late, 'step')} late" if score.late and score.late > 0 else ""
    why = f": {short(score.reason)}" if score.reason else ""
    return f"  {score.scenario}, {score.detector}: {score.found}{at}{why}"


def _summary(name: str, scores: Sequence[Score]) -> str:
    counts = Counter(score.found for score in scores)
    parts = [f"{counts[kind]} {kind}" for kind in Detection if counts[kind]]
    parts = [part + "s" if part.endswith("alarm") and part[:2] != "1 " else part for part in parts]
    late = [max(0, s.late) for s in scores if s.late is not None]
    calls = sum(t.calls for s in scores for t in s.trials)
    seconds = sum(t.seconds for s in scores for t in s.trials)
    text = f"{name}: {count(len(scores), 'bug')}: {', '.join(parts)}"
    text += f"; {statistics.median(late):.0f} steps late (median)" if late else ""
    return text + (f"; {1000 * seconds / calls:.2f} ms a step" if calls else "")


def _print_harms(detectors: Sequence[DetectorConfig], scores: Sequence[Score]) -> None:
    """Print how many bugs of each kind each detector found, of those that it could watch."""
    harms = [h for h in HARMS if any(catalog.scenario(s.scenario).harm == h for s in scores)]
    rows = []
    for detector in detectors:
        cells = []
        for harm in harms:
            of = [
                s.found
                for s in scores
                if s.detector == detector.name and catalog.scenario(s.scenario).harm == harm
            ]
            watched_count = len(of) - of.count(Detection.NOT_APPLICABLE)
            cells.append(f"{of.count(Detection.DETECTED)} of {watched_count}")
        rows.append([detector.name, *cells])
    terminal().print(table("Detected, by what the bug does", ["detector", *harms], rows))


CLASS = "Detector"

GUARD = "harness.rank.guard_detector"

TRAINING = ("attach", "step")
METHODS = {"judge": ("record", "attach"), "batch": ("attach",)}
"""The methods that a detector with one of these must also have; others must have TRAINING."""

OURS = {
    "samples": "rows come once, to one rank, in an order of their own",
    "guard": "what guard checks in a training, as often as it can",
    "guard/budget": "what guard checks with its usual budget",
    "usual/gradient_norm": "a usual check: no gradient is ten times the usual norm",
    "usual/loss_spike": "a usual check: no loss is three times the usual one",
    "usual/nan": "a usual check: nothing is nan or infinite",
    "usual/weights": "a usual check: the ranks' weights have the same sum",
}
"""The detectors that come with this project, and what each claims about correct training."""


def detector_named(word: str) -> DetectorConfig:
    """The detector that a word names: ours by its name, ``FILE.py:CLASS`` or ``MODULE:CLASS``."""
    if word in OURS:
        module, _, kind = word.partition("/")
        name = "".join(part.capitalize() for part in kind.split("_")) or CLASS
        place = GUARD if module == "guard" else f"harness.detectors.{module}"
        return DetectorConfig(word, place, name, "")
    place, colon, kind = word.rpartition(":")
    if not (colon and kind.isidentifier()):
        raise UserError(f"{unknown('detector', word, OURS)} Or name FILE.py:CLASS")
    file = Path(place) if place.endswith(".py") else Path(*place.split(".")).with_suffix(".py")
    if file.is_file():
        module = file.stem if place.endswith(".py") else place
        root = file.parent if place.endswith(".py") else Path()
        detector = DetectorConfig(word, module, kind, str(root.resolve()))
    elif not place.endswith(".py") and (spec := importlib.util.find_spec(place.partition(".")[0])):
        detector = DetectorConfig(word, place, kind, _root(spec))
    else:
        noun = "file" if place.endswith(".py") else "module"
        raise UserError(f"no {noun} {place} for {word}: name FILE.py:CLASS or MODULE:CLASS")
    _refuse_without_class(detector)
    return detector


def _root(module: ModuleSpec) -> str:
    """The folder that ranks need on their path to import a module, such as one of PYTHONPATH; empty
    for an installed module, which they find."""
    where = next(iter(module.submodule_search_locations or ()), module.origin or "")
    folder = str(Path(where).parent.resolve())
    installed = {str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib")}
    return "" if folder in installed else folder


def _refuse_without_class(detector: DetectorConfig) -> None:
    """Import the detector here, so that a mistake in it is one line before anything runs."""
    if detector.root and detector.root not in sys.path:
        sys.path.insert(0, detector.root)
    try:
        kind = getattr(importlib.import_module(detector.module), detector.kind, None)
    except (Exception, SystemExit) as error:
        raise UserError(f"{detector.name}: {type(error).__name__}: {error}") from None
    if not callable(kind):
        raise UserError(f"{detector.name}: {detector.module} has no class {detector.kind}")
    required_methods = next((methods for one, methods in METHODS.items() if hasattr(kind, one)), ())
    if missing := [name for name in required_methods or TRAINING if not hasattr(kind, name)]:
        raise UserError(f"{detector.name} has no method {missing[0]}: docs/detectors.md")
    parameters = inspect.signature(kind.attach).parameters.values()
    if not any(p.name == "group" or p.kind is p.VAR_KEYWORD for p in parameters):
        raise UserError(f"{detector.name}: attach must take group=: docs/detectors.md")
