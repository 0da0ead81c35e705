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

    def to_json(self) -> dict[str, str]:
        return {"status": str(self.status), "reason": self.reason}


class RowJson(TypedDict):
    """The answer of one model to one relation, as plain values."""

    model: str
    relation: str
    status: str
    reason: str


@dataclass(frozen=True)
class Row:
    """The answer of one model to one relation."""

    model: str
    relation: str
    answer: Answer

    def to_json(self) -> RowJson:
        return {
            "model": self.model,
            "relation": self.relation,
            "status": str(self.answer.status),
            "reason": self.answer.reason,
        }


def no_answer(error: Exception) -> Answer:
    """The answer of a question that an error ended."""
    return Answer(AnswerStatus.NO_ANSWER, complaint(error).removeprefix("NoAnswer: "))


def answer_of(content: Mapping[str, Any]) -> Answer:
    """The answer that ``to_json`` wrote."""
    return Answer(AnswerStatus(content["status"]), content["reason"])


class NoAnswer(Exception):
    """The relation does not apply to this model; the message is the reason."""


class Refused(Exception):
    """The model declares that it does not support this; the message is the reason."""


class Wrong(Exception):
    """The relation does not hold; the message is the reason."""
