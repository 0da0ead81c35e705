"""run your own training script in several layouts, and compare what it does

    python -m harness probe train.py --batch-size {rows} --accum {k}
    python -m harness probe --save "--save {dir} --save-at {at}" --resume "--resume {dir}" \\
        train.py --batch-size {rows} --accum {k}
    python -m harness probe torchrun --nproc-per-node 8 train.py --batch-size {rows}
    python -m harness probe --layouts ranks -m my_package.train --batch-size {rows}
    python -m harness probe --set batch_size={rows} --layouts ranks,resume train.py
    python -m harness probe --relation packing,padding,cache,buffers train.py
    python -m harness probe --launch gpu train.py --batch-size {rows} --accum {k}
    python -m harness probe patch=fix.diff train.py --batch-size {rows} --accum {k}
    python -m harness probe --against .venv-new/bin/python train.py --batch-size {rows}
    python -m harness probe --pins transformers=4.57.6,5.24.0 train.py --batch-size {rows}

The script runs unchanged, on the CPU or on GPUs: on 1 rank (the reference), on several ranks, with
several micro-batches, with both, and stopped and resumed. On the CPU, what it asks of CUDA is done
there (not with --as-written). Options before the script are ours, those after it are the script's.
In those, {rows} is the size of a micro-batch on one rank, {k} the number of micro-batches of a
step, {ranks} that of ranks, {dir} a folder for checkpoints, and {at} the step to save at.
patch=FILE, before the script, changes a copy of the packages that the script imports.

exit codes: 0 all layouts are as the reference, 1 a relation is broken, 2 a mistake in the command,
or releases of --pins that cannot be installed, 3 no answer. docs/probe.md explains the report.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields, replace
from datetime import date
from itertools import islice
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from harness.bugs import pins
from harness.bugs.api.spec import Lane
from harness.bugs.lookup import why_affected
from harness.check import environment, interpreter
from harness.cli import NAME, Arguments, patches, refuse_twice
from harness.cli._values import (
    STANDARD_OUTPUT,
    output,
    refuse_overwriting,
    seconds,
    some_of,
    whole_number,
    write_json,
)
from harness.rank.probe import constants
from harness.releases import edits, overlay
from harness.releases.patches import packages
from harness.run.server_pool import Pool
from harness.system.code import is_importable
from harness.system.errors import Inconclusive, Unsupported, UserError
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder, why_no_gpus
from harness.system.terminal import Progress, terminal
from harness.training.guard import known
from harness.training.probe.answers import Answers
from harness.training.probe.layouts import LAYOUTS, RELATIONS, Settings
from harness.training.probe.probe_report import as_json, exit_code, status, text
from harness.training.probe.prober import Prober, leased_gpus
from harness.training.probe.signatures import known_bugs
from harness.training.probe.target import Target, names, target

MOST_RANKS = 256

NEEDED = ("torch", "numpy")
"""What each interpreter must have."""

ARGS = "ARGS"
"""Stands in the help for arguments of the script."""


def main(arguments: list[str]) -> int:
    parser = _parser()
    ours, script = _parted(arguments, parser)
    ours, changes = patches(ours)
    options = parser.parse_args([*ours, *script])
    options.patches = changes
    options.against, options.environments = _environments(options)
    settings = _settings(options)
    chosen = _target(options)
    refuse_overwriting((options.json,), (chosen.file,))
    _refuse_blind(chosen, settings)
    if options.launch == Lane.GPU and (reason := why_no_gpus(settings.ranks)):
        raise UserError(f"--launch gpu: {reason}. Leave it out to probe on the CPU")
    refuse_without_torch("probe", *NEEDED[1:])
    began = time.monotonic()
    answers = _answers(chosen, settings, options)
    spent, bugs = time.monotonic() - began, known_bugs(answers, why_affected)
    write_json(options.json, as_json(answers, spent, bugs), text(answers, spent, bugs))
    return exit_code(answers)


def _parted(arguments: Iterable[str], parser: Arguments) -> tuple[list[str], list[str]]:
    """Our options, and the script with its arguments. Arguments of the script that begin with a
    dash are joined to their option: argparse would take ``--seed=7`` for an option."""
    actions = {name: action for action in parser._actions for name in action.option_strings}
    words, ours = iter(arguments), list[str]()
    for word in words:
        action = actions.get(word)
        if action is not None and action.metavar == ARGS:
            ours.append(f"{word}={next(words, '')}")
        elif word.startswith("-"):
            is_flag = action is not None and action.nargs == 0
            ours += [word, *islice(words, int("=" not in word and not is_flag))]
        elif word.startswith("patch="):
            ours.append(word)
        else:
            return ours, [word, *words]
    return ours, []


def _parser() -> Arguments:
    parser, usual = Arguments(__name__), asdict(Settings())

    def option(names: str, text: str, parse: Any = str, **others: Any) -> None:
        """Add an option with a value. Its default is that of ``Settings``; a number is shown."""
        default = usual.get(names.rpartition("--")[2].replace("-", "_"))
        default = others.pop("default", default)
        shown = " (default: %(default)s)" if isinstance(default, (int, float)) and default else ""
        parser.add_argument(
            *names.split(), type=parse, default=default, help=text + shown, **others
        )

    def flag(name: str, text: str) -> None:
        parser.add_argument(name, action="store_true", help=text)

    ranks = whole_number(1, MOST_RANKS)
    option("--rows", "rows of a step", whole_number(1, 10_000_000))
    text = "(default: 2, or twice --reference-ranks)"
    option("--ranks", text, whole_number(2, MOST_RANKS), default=None)
    option("--reference-ranks", "for a script that does not run on one rank", ranks)
    option("-k --k", "micro-batches", whole_number(2, 10_000))
    option("--steps", "of the optimizer", whole_number(2, 100_000))
    option("--at", "step to save at", whole_number(1, 100_000))
    option("--save", "arguments with which the script saves; may be ''", metavar=ARGS)
    option("--resume", "arguments with which it resumes; may be ''", metavar=ARGS)
    option("--other-seed", "arguments that set another seed", metavar=ARGS)
    option("--layouts", f"a comma-separated part of {','.join(LAYOUTS)}", _names(LAYOUTS))
    text = "set a constant of the script that has no argument, such as batch_size={rows}"
    option("--set", text, action="append", default=[], metavar="NAME=VALUE")
    text = (
        f"a comma-separated part of {','.join(RELATIONS)}: is the script's model right? Without "
        "--layouts nothing else is asked"
    )
    option("--relation", text, _names(RELATIONS), default=(), dest="relations", metavar="NAMES")
    text = "do not compare which rows were seen"
    option("--without", text, lambda text: (*filter(None, text.split(",")),), metavar="samples")
    flag("--same-rows", "all ranks see the same rows (tensor parallelism)")
    flag("--epoch", "the script ends after an epoch: count all its rows")
    text = "name the place where the first BROKEN layout parts from the reference (default)"
    on_or_off = argparse.BooleanOptionalAction
    parser.add_argument("--where", action=on_or_off, default=True, help=text)
    flag("--as-written", "do not run on the CPU what the script asks of CUDA")
    text = "gpu: over NCCL; if there are fewer GPUs than ranks, ranks share them"
    option("--launch", text, choices=[Lane.CPU, Lane.GPU], default=Lane.CPU)
    option("--python", "another interpreter", default=sys.executable, metavar="PATH")
    text = "a second interpreter: does the script train the same in its environment?"
    option("--against", text, metavar="PATH")
    text = "the same with two releases of a package; may be given several times"
    option("--pins", text, action="append", default=[], metavar="NAME=A,B")
    option("--timeout", "seconds of a layout", seconds, default=120)
    text = "write the answers; - is standard output, without text"
    option("--json", text, output, metavar="FILE")
    flag("-m", "the script is a module")
    text = "the script and its arguments"
    parser.add_argument("script", nargs=argparse.REMAINDER, help=text)
    return parser


def _names(choices: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """A comma-separated part of some names, as a tuple."""
    parse = some_of(choices)
    return lambda text: tuple(filter(None, parse(text).split(",")))


def _interpreter(name_or_path: str) -> str:
    """The interpreter of --python, or of --against: the servers that start it have another working
    folder. Raises UserError if it lacks a package."""
    path = _path(name_or_path)
    is_ours = path == _path(sys.executable)
    if absent := [] if is_ours else interpreter.missing(Path(path), NEEDED):
        raise UserError(f"{name_or_path} has no {' and '.join(absent)}, which probe needs there")
    return path


def _path(name_or_path: str) -> str:
    return os.path.abspath(interpreter.executable(Path(shutil.which(name_or_path) or name_or_path)))


def _environments(options: argparse.Namespace) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    """The name of the other environment, if there is one; and of each, the first one before, the
    interpreter and the releases that come before its own."""
    if options.against and options.pins:
        raise UserError("--against and --pins name two environments each: give one of them")
    if options.patches and (options.against or options.pins):
        raise UserError("a patch would replace packages of both environments: leave it out")
    if options.pins and _path(options.python) != _path(sys.executable):
        raise UserError("--pins needs the Python of this installation: leave --python out")
    options.python = _interpreter(options.python)
    if options.against:
        return options.against, [(options.python, {}), (_interpreter(options.against), {})]
    if not options.pins:
        return "", [(options.python, {})]
    first, second = _pins(options.pins)
    news = {name: version for name, version in second.items() if first[name] != version}
    return pins.describe(news), [(options.python, first), (options.python, second)]


def _pins(words: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The releases of --pins, on both sides."""
    sides: tuple[dict[str, str], dict[str, str]] = ({}, {})
    word_of = dict[str, str]()
    for word in words:
        name, _, versions = word.partition("=")
        pair = versions.split(",")
        try:
            is_release = bool([*map(Version, pair)])
        except InvalidVersion:
            is_release = False
        if not (NAME.fullmatch(name) and is_release) or len(pair) > 2:
            raise UserError(f"--pins {word}: write NAME=A,B, such as transformers=4.57.6,5.24.0")
        if canonicalize_name(name) == pins.TORCH:
            raise UserError("--pins cannot change torch: use --against, with another environment")
        refuse_twice(word_of, name, word)
        for side, version in zip(sides, (pair[0], pair[-1]), strict=True):
            side[canonicalize_name(name)] = version
    if words and sides[0] == sides[1]:
        raise UserError(f"--pins {' '.join(words)}: both sides have the same releases")
    return sides


def _settings(options: argparse.Namespace) -> Settings:
    names = {each.name for each in fields(Settings)}
    chosen = {name: value for name, value in vars(options).items() if name in names}
    chosen["ranks"] = chosen["ranks"] or 2 * options.reference_ranks
    return Settings(**chosen)


def _target(options: argparse.Namespace) -> Target:
    chosen = target(["-m", *options.script] if options.m else options.script)
    ours = options.python == os.path.abspath(sys.executable) and not options.pins
    if chosen.module and ours and not is_importable(chosen.script.partition(".")[0]):
        raise UserError(f"there is no module {chosen.script}")
    pairs = [word.partition("=") for word in options.set]
    for name, equals, _ in pairs:
        if not (equals and name.isidentifier()):
            raise UserError(f"--set {name}{equals}: write NAME=VALUE, such as batch_size={{rows}}")
    chosen = replace(chosen, constants={name: text for name, _, text in pairs})
    if chosen.constants and (file := chosen.file) is not None:
        constants.changed(file.read_text(), file.name, chosen.constants)  # or raise
    return chosen


def _refuse_blind(chosen: Target, settings: Settings) -> None:
    """Refuse arguments that are the same in all layouts: such runs could not be compared."""
    others = (settings.save or "", settings.resume or "")
    placeholders = names((*chosen.arguments, *chosen.constants.values(), *others))
    only_relations = settings.relations and not settings.layouts
    if not (only_relations or placeholders & {"rows", "total"} or settings.same_rows):
        raise UserError(
            "the script must be given {rows}, the size of a micro-batch on one rank: for example "
            "train.py --batch-size {rows} --accum {k}, or --set batch_size={rows} before train.py "
            "if it has no argument for that. If its batch size is that of all ranks: {rows*ranks}, "
            "or {total} if it is that of all ranks and micro-batches"
        )


def _answers(chosen: Target, settings: Settings, options: argparse.Namespace) -> Answers:
    console = terminal(sys.stderr if options.json == STANDARD_OUTPUT else None)
    with (
        tempfile.TemporaryDirectory(prefix="probe-", ignore_cleanup_errors=True) as folder,
        Progress(console) as progress,
        leased_gpus(0 if options.launch == Lane.CPU else settings.ranks) as numbers,
        Pool() as pool,
        ExitStack() as stack,
    ):
        bugs = Path(folder, "known.json")
        known.write(bugs)
        settings = replace(settings, bugs=str(bugs))
        progress.say(f"probing {chosen.script}")
        patched = ""
        if options.patches:  # a folder with copies of packages
            patched = str(Path(folder) / "patched")
            packages_of_patches = {name for text in options.patches for name in packages(text)}
            ours = environment.of_interpreter(Path(options.python), packages_of_patches).interpreter
            edits.patched_copies(options.patches, ours.packages if ours else {}, Path(patched))
        environments = []
        for python, releases in options.environments:
            sites = patched, stack.enter_context(_site(releases, progress))
            environments.append((python, os.pathsep.join(filter(None, sites))))
        prober = Prober(
            pool,
            environments=environments,
            timeout=options.timeout,
            gpus=numbers,
            as_written=options.as_written,
            report=lambda comparison: progress.show(status(comparison)),
        )
        return prober.probe(chosen, settings)


@contextmanager
def _site(releases: Mapping[str, str], progress: Progress) -> Iterator[str]:
    """The folder with these releases; empty without any. Raises UserError if they cannot be
    installed together."""
    if not releases:
        yield ""
        return
    today = date.today().isoformat()
    stack = pins.Stack(releases, today, *pins.here())
    if not overlay.is_built(stack, (), cache_folder()):
        progress.say(f"making the overlay of {stack}")
    with ExitStack() as context:
        try:
            borrowed = context.enter_context(overlay.borrow(stack, (), cache_folder()))
        except (Unsupported, Inconclusive) as error:
            raise UserError(f"--pins: {error}") from None
        yield str(borrowed.site)
