"""The result of one relation of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.system.text import StrEnum


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

    def to_json(self) -> dict[str, str]:
        return {"status": str(self.status), "reason": self.reason}


@dataclass(frozen=True)
class Row:
    """The answer of one model to one relation."""

    model: str
    relation: str
    answer: Answer
    stored: bool = False
    """Whether it was read from the cache."""

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "relation": self.relation,
            **self.answer.to_json(),
            "stored": self.stored,
        }


def answer_of(content: Mapping[str, Any]) -> Answer:
    """Read an answer from JSON. Raises ValueError, KeyError or TypeError if it is not valid."""
    return Answer(AnswerStatus(content["status"]), str(content["reason"]))


class NoAnswer(Exception):
    """The relation does not apply to this model; the message is the reason."""


class Refused(Exception):
    """The model declares that it does not support this; the message is the reason."""


class Wrong(Exception):
    """The relation does not hold; the message is the reason."""
