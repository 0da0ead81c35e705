"""ask every model of transformers whether its features are right

    python -m harness models                                   # all causal language models
    python -m harness models llama gpt_oss --relations packing,tensor_parallel
    python -m harness models bert:masked_lm t5:seq2seq_lm      # with other heads
    python -m harness models --head token_classification       # all models with this head
    python -m harness models --pins transformers=5.10.1 --json -
    python -m harness models config.json                       # your own configuration, made small
    python -m harness models my_model.py:make                  # a model of your own
    python -m harness models llama patch=fix.diff              # with this change of transformers
    python -m harness models --newest --changes                # what do today's releases break?

make() returns a small model and a batch: a dictionary of tensors with input_ids and labels. A
relation is something that must hold of a model, such as: a packed row has the same logits as alone.

exit codes: 0 nothing is wrong, 1 a relation is wrong, 2 a mistake in the command, 3 no answer at
all. With --changes 1 says that a relation became wrong. docs/models.md explains the relations and
the statuses.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from harness.bugs.api.spec import Lane
from harness.check.source import read_file
from harness.cli import Arguments, patches, pins_of
from harness.cli._values import STANDARD_OUTPUT, output, refuse_overwriting, some_of, write_json
from harness.rank.models import architectures
from harness.rank.models.answer import AnswerStatus, Row
from harness.rank.models.heads import CAUSAL, HEADS, SUBJECT, Word, parsed
from harness.rank.models.relations import QUESTIONS
from harness.system.code import refuse_without_name
from harness.system.documents import json_of
from harness.system.errors import ExitCode, UserError, unknown
from harness.system.installation import refuse_without_torch
from harness.system.terminal import Progress, terminal
from harness.system.text import count, short
from harness.training.models import recorded, stack, table
from harness.training.models.answers import Asking, ask
from harness.training.models.recorded import Changed
from harness.training.models.stack import Releases


def main(arguments: list[str]) -> int:
    arguments, changes = patches(arguments)
    options = _parser().parse_intermixed_args(arguments)
    lane = Lane(options.launch)
    relations = _relations(options.relations or "", lane)
    pins = pins_of(options.pins, "=", "transformers=5.10.1")
    if options.record and (changes or any(parsed(word).is_file for word in options.models)):
        raise UserError("--record keeps what releases answer: leave patches and own models out")
    if options.record and lane is Lane.GPU:
        raise UserError("--record keeps what was asked on a CPU: leave --launch gpu out")
    if options.newest and pins:
        raise UserError("--newest chooses all releases: leave --pins out")
    words = _model_words(options.models, options.head)
    refuse_overwriting((options.json,), (parsed(word).model for word in options.models))
    refuse_without_torch("models")
    if not (pins or options.newest or stack.is_installed()):
        _refuse_unrecorded(words)
    pins = stack.newest() if options.newest else pins
    began = time.monotonic()
    with stack.borrow(pins, changes) as releases:
        for word in words:
            if not word.is_script:
                _refuse_unknown(word, releases)
        types = architectures.names(releases.site, options.head)
        chosen = words or [Word(name, head=options.head) for name in types]
        models = list(dict.fromkeys(map(str, chosen)))
        rows = _ask_models(options, Asking(releases, models, relations, lane=lane))
        changed = None
        if options.changes:
            before = recorded.before(releases.packages, {row.model for row in rows})
            if not before:
                named = f"transformers {releases.packages[SUBJECT]}"
                raise UserError(f"--changes: no release before {named} was recorded")
            changed = recorded.changed(rows, before)
        _write(options, rows, releases, time.monotonic() - began, changed)
        if options.record:
            recorded.record(rows, releases)
    if changed:
        return ExitCode.NOT_AS_EXPECTED if changed.broken else ExitCode.AS_EXPECTED
    return table.exit_code(rows)


def _parser() -> Arguments:
    parser = Arguments(__name__)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help="a type such as llama, a config.json, or FILE.py:FUNCTION (default: all types); with "
        "another head as in bert:masked_lm",
    )
    parser.add_argument(
        "--head",
        choices=list(HEADS),
        default=CAUSAL,
        help="of the models that name none (default: %(default)s)",
    )
    parser.add_argument(
        "--relations",
        type=some_of(QUESTIONS),
        help=f"a comma-separated part of {','.join(QUESTIONS)}",
    )
    parser.add_argument(
        "--pins",
        action="append",
        default=[],
        metavar="NAME=VERSION",
        help=f"a release of {', '.join(stack.PACKAGES)}; repeatable",
    )
    parser.add_argument(
        "--launch",
        choices=[lane.value for lane in Lane],
        default=Lane.CPU.value,
        help="gpu: relations of two ranks, on two GPUs over NCCL (default: %(default)s)",
    )
    parser.add_argument(
        "--newest", action="store_true", help="ask with today's newest release of each package"
    )
    parser.add_argument(
        "--changes", action="store_true", help="compare with the newest recorded release before"
    )
    parser.add_argument(
        "--record", action="store_true", help="keep the answers for the pages, the site and check"
    )
    parser.add_argument(
        "--json", type=output, metavar="FILE", help="write the cells; - is standard output"
    )
    return parser


def _relations(words: str, lane: Lane) -> list[str]:
    """The named relations, or all of a lane; on GPUs only relations of several ranks."""
    relations = [n for n, question in QUESTIONS.items() if lane is Lane.CPU or question.ranks > 1]
    names = list(filter(None, words.split(",")))
    for name in names:
        if name not in relations:
            raise UserError(unknown("relation", name, relations))
    return [name for name in relations if name in (names or relations)]


def _model_words(words: Sequence[str], head: str) -> list[Word]:
    """The named models, checked as far as possible without transformers."""
    models = [parsed(word, head) for word in words]
    for word in models:
        if word.head not in HEADS:
            raise UserError(unknown("head", word.head, HEADS))
        if word.is_file:
            _refuse_unfit(word)
    return models


def _refuse_unrecorded(words: Sequence[Word]) -> None:
    """Refuse a type that no recorded release has: the index is not read for a typing mistake."""
    types = sorted({parsed(name).model for of in recorded.all_recorded() for name in of.answers})
    for word in words:
        if not word.is_script and types and _type(word) not in types:
            hint = "For a model of a newer transformers, write --newest."
            raise UserError(f"{unknown('model', short(_type(word)), types)} {hint}")


def _refuse_unknown(word: Word, releases: Releases) -> None:
    """Refuse a type, also one in a config.json, that transformers does not have with this head."""
    types = architectures.names(releases.site, word.head)
    model = _type(word)
    if model in types:
        return
    others = [h for h in HEADS if model in architectures.names(releases.site, h)]
    if others:
        choices = ", ".join(f"{word.model}:{head}" for head in others)
        raise UserError(f"{model} has no head {word.head}: name {choices}")
    raise UserError(unknown("model", short(model), types))


def _refuse_unfit(word: Word) -> None:
    """Refuse a file that is missing, and a script without the name of its function."""
    file = Path(word.model)
    if not file.is_file():
        raise UserError(f"no file {file}: name a config.json, or FILE.py:FUNCTION")
    if word.is_script and not word.function.isidentifier():
        raise UserError(f"{word}: name the function that makes the model, {file}:make")
    if word.is_script:
        refuse_without_name(file, word.function)
    else:
        _type_in(file)


def _type(word: Word) -> str:
    """The type of a model: the word itself, or what a config.json says."""
    return _type_in(Path(word.model)) if word.is_file else word.model


def _type_in(file: Path) -> str:
    """The type of model in a config.json. Raises UserError for a file that transformers cannot read
    either, as it reads UTF-8 alone."""
    text, model, why = "", None, f"{file} is no config.json of transformers: it has no model_type"
    with suppress(UserError, ValueError, AttributeError):
        text = read_file(file).text
        try:
            model = json_of(text).get("model_type")
        except json.JSONDecodeError as error:
            why = f"{file} is not JSON: {error}"
    if not isinstance(model, str):
        raise UserError(why)
    if file.read_bytes() != text.encode():
        raise UserError(f"{file} must be in UTF-8, without a byte order mark")
    return model


def _ask_models(options: argparse.Namespace, asking: Asking) -> list[Row]:
    console = terminal(sys.stderr if options.json == STANDARD_OUTPUT else None)
    models, relations = count(len(asking.models), "model"), count(len(asking.relations), "relation")
    console.print(f"{asking.releases}: {models}, {relations}", style="bold")
    total, number, mistakes = len(asking.models) * len(asking.relations), 0, 0
    with Progress(console) as progress:
        progress.say("asking")

        def report_row(row: Row) -> None:
            nonlocal number, mistakes
            number += 1
            mistakes += row.answer.status is AnswerStatus.WRONG
            progress.tally(f"{number}/{total} cells, {mistakes} wrong; {row.model} {row.relation}")

        return ask(asking, report_row)


def _write(
    options: argparse.Namespace,
    rows: Sequence[Row],
    releases: Releases,
    seconds: float,
    changed: Changed | None,
) -> None:
    lines = table.by_model(rows) if options.models else table.wrong_by_relation(rows)
    lines = table.changes(changed) if changed else lines
    content = table.as_json(rows, releases, seconds, changed)
    write_json(options.json, content, [*lines, table.counted(rows, seconds)])
