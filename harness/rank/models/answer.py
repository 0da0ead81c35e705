"""The result of one relation of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from harness.system.text import StrEnum, complaint


class AnswerStatus(StrEnum):
    """Whether a relation holds."""

    RIGHT = "right"
    WRONG = "wrong"
    REFUSED = "refused"
    """The model raised an error: it does not pretend."""
    NO_ANSWER = "no answer"
    """The question could not be asked: the model offers no such feature, or something failed."""


@dataclass(frozen=True)
class Answer:
    """The status of a relation, and why."""

    status: AnswerStatus
    reason: str = ""
    repeatable: bool = True
    """Whether another run would give the same: not after a deadline."""

    def to_json(self) -> dict[str, Any]:
        status, reason = str(self.status), self.reason
        return {"status": status, "reason": reason, "repeatable": self.repeatable}


class RowJson(TypedDict):
    """The answer of one model to one relation, as plain values."""

    model: str
    relation: str
    status: str
    reason: str
    stored: bool


@dataclass(frozen=True)
class Row:
    """The answer of one model to one relation."""

    model: str
    relation: str
    answer: Answer
    stored: bool = False
    """Whether it was read from the cache."""

    def to_json(self) -> RowJson:
        return {
            "model": self.model,
            "relation": self.relation,
            "status": str(self.answer.status),
            "reason": self.answer.reason,
            "stored": self.stored,
        }


def no_answer(error: Exception) -> Answer:
    """The answer of a question that an error ended. Another run may answer it if the error was that
    a module of this package is missing: its folder was removed while ranks ran."""
    package = (getattr(error, "name", None) or "").split(".")[0]
    is_ours = isinstance(error, ImportError) and package == __name__.split(".")[0]
    reason = complaint(error).removeprefix("NoAnswer: ")
    return Answer(AnswerStatus.NO_ANSWER, reason, repeatable=not is_ours)


def answer_of(content: Mapping[str, Any]) -> Answer:
    """Read an answer from JSON. Raises ValueError, KeyError or TypeError if it is not valid."""
    status = AnswerStatus(content["status"])
    return Answer(status, str(content["reason"]), bool(content.get("repeatable", True)))


class NoAnswer(Exception):
    """The relation does not apply to this model; the message is the reason."""


class Refused(Exception):
    """The model declares that it does not support this; the message is the reason."""


class Wrong(Exception):
    """The relation does not hold; the message is the reason."""
