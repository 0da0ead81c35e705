"""The recorded answers of releases of transformers; part of this package.

``models --record`` adds the answers of a run. Pages, the site and ``check --model`` read them.
"""

from __future__ import annotations

import json
import lzma
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import Version

from harness.rank.models.answer import Answer, AnswerStatus, Row
from harness.rank.models.heads import SUBJECT, parsed
from harness.rank.models.relations import QUESTIONS
from harness.system import machine
from harness.system.files import beside

if TYPE_CHECKING:
    from harness.training.models.stack import Releases  # imports what makes overlays

FILE = Path(__file__).with_name("recorded.json.xz")

Answers = Mapping[str, Mapping[str, Answer]]
"""By model and relation."""


@dataclass(frozen=True)
class RecordedAnswers:
    """All answers of one release of transformers."""

    packages: Mapping[str, str]
    """The releases that were asked with, with torch."""
    day: str
    answers: Answers

    @property
    def release(self) -> str:
        return self.packages[SUBJECT]

    def with_head(self, head: str) -> Answers:
        """The answers of the models with a head."""
        return {word: of for word, of in self.answers.items() if parsed(word).head == head}

    def words(self, model: str) -> list[str]:
        """A model, and the same with other heads, as far as they were asked."""
        return [word for word in self.answers if word == model or word.startswith(f"{model}:")]

    def untested(self, model: str) -> list[str]:
        """The relations that a model was not asked."""
        return [name for name in QUESTIONS if name not in self.answers.get(model, {})]

    def wrong_relations(self, model: str) -> list[str]:
        """The relations of a model that are wrong."""
        answers = self.answers.get(model, {})
        return [r for r in QUESTIONS if r in answers and answers[r].status is AnswerStatus.WRONG]


@cache
def all_recorded() -> tuple[RecordedAnswers, ...]:
    """Every release that was recorded, oldest first."""
    if not FILE.exists():
        return ()
    content = json.loads(lzma.decompress(FILE.read_bytes()))
    return tuple(
        RecordedAnswers(
            release["packages"],
            release["day"],
            {
                model: {
                    relation: Answer(AnswerStatus(status), reason)
                    for relation, (status, reason) in of.items()
                }
                for model, of in release["answers"].items()
            },
        )
        for release in content
    )


def record(rows: Iterable[Row], releases: Releases) -> None:
    """Keep the answers of a run; answers of its release that it did not repeat stay."""
    by_release = {one.release: one for one in all_recorded()}
    packages = {**releases.packages, "torch": machine.facts()["torch"]}
    before = by_release.get(packages[SUBJECT])
    answers = {model: dict(of) for model, of in (before.answers if before else {}).items()}
    for row in rows:
        answers.setdefault(row.model, {})[row.relation] = row.answer
    by_release[packages[SUBJECT]] = RecordedAnswers(packages, time.strftime("%Y-%m-%d"), answers)
    in_order = sorted(by_release.values(), key=lambda one: Version(one.release))
    content = [
        {
            "packages": release.packages,
            "day": release.day,
            "answers": {
                model: {relation: [str(a.status), a.reason] for relation, a in of.items()}
                for model, of in release.answers.items()
            },
        }
        for release in in_order
    ]
    text = json.dumps(content, separators=(",", ":"), sort_keys=True)
    aside = beside(FILE)
    aside.write_bytes(lzma.compress(text.encode(), preset=9))
    os.replace(aside, FILE)
    all_recorded.cache_clear()


def up_to(release: str) -> list[RecordedAnswers]:
    """The recorded answers of a release and of those before it, oldest first."""
    return [one for one in all_recorded() if Version(one.release) <= Version(release)]


def nearest(release: str, model: str) -> dict[str, RecordedAnswers]:
    """For a model, and for the same with other heads: the newest recorded answers, up to a
    release."""
    by_word = {word: one for one in up_to(release) for word in one.words(model)}
    return dict(sorted(by_word.items()))


def before(packages: Mapping[str, str], models: Iterable[str]) -> RecordedAnswers | None:
    """The newest answers from before these releases that have one of these models, if possible with
    all relations; None without any. The same release of transformers counts if another package or
    torch differs."""
    versions = {**packages, "torch": machine.facts()["torch"]}

    def is_older(entry: RecordedAnswers) -> bool:
        is_same_release = entry.release == versions[SUBJECT]
        has_changed = any(entry.packages.get(name) != version for name, version in versions.items())
        return (
            has_changed if is_same_release else Version(entry.release) < Version(versions[SUBJECT])
        )

    requested = set(models)
    older = [
        entry for entry in all_recorded() if is_older(entry) and requested & entry.answers.keys()
    ]
    whole = [
        entry
        for entry in older
        if any(entry.answers.get(model, {}).keys() >= set(QUESTIONS) for model in requested)
    ]
    return next(reversed(whole or older), None)


@dataclass(frozen=True)
class Changed:
    """How the answers of a run differ from those of a release that was recorded before."""

    before: RecordedAnswers
    broken: tuple[Row, ...]
    """Wrong now, and right or refused before."""
    new: tuple[Row, ...]
    """Wrong now, of a model that was not there or relation that was not asked."""
    mended: tuple[Row, ...]
    """Wrong before, and right or refused now."""


def changed(rows: Sequence[Row], before: RecordedAnswers) -> Changed:
    """Compare the answers of a run with what was recorded."""
    fine, broken, new, mended = (AnswerStatus.RIGHT, AnswerStatus.REFUSED), [], [], []
    for row in rows:
        old_answer, status = before.answers.get(row.model, {}).get(row.relation), row.answer.status
        if status is AnswerStatus.WRONG and (
            old_answer is None or old_answer.status is AnswerStatus.NO_ANSWER
        ):
            new.append(row)
        elif status is AnswerStatus.WRONG and old_answer and old_answer.status in fine:
            broken.append(row)
        elif status in fine and old_answer and old_answer.status is AnswerStatus.WRONG:
            mended.append(row)
    return Changed(before, tuple(broken), tuple(new), tuple(mended))


def wrong_since(model: str, relation: str) -> tuple[str, str]:
    """The oldest recorded release since which a relation is wrong, up to the newest that was asked;
    and the release before it, where it is not; "" if none was recorded with the model."""
    oldest_wrong, before = "", ""
    for entry in reversed(all_recorded()):
        answer = entry.answers.get(model, {}).get(relation)
        if answer is None and not oldest_wrong:
            continue
        if answer is None or answer.status is not AnswerStatus.WRONG:
            before = entry.release if answer and answer.status is not AnswerStatus.NO_ANSWER else ""
            break
        oldest_wrong = entry.release
    return oldest_wrong, before
