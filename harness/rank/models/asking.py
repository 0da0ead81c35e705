"""Checks the relations of a subject, in a separate process. Errors become answers."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from harness.rank.models.answer import Answer, AnswerStatus, NoAnswer, Refused, Wrong, no_answer
from harness.rank.models.relations import QUESTIONS
from harness.rank.models.subject import Subject, run
from harness.system.files import ROOT
from harness.system.text import complaint


def ask_alone(name: str, subject: Subject) -> Answer:
    """Check a relation of a subject on this rank."""
    if why := subject.head.unasked.get(name):
        return Answer(AnswerStatus.NO_ANSWER, why)
    return guarded(lambda: QUESTIONS[name].relation(name)(subject))


def guarded(ask: Callable[[], str | None]) -> Answer:
    """Call a function and turn what it returns or raises into an answer."""
    try:
        return Answer(AnswerStatus.RIGHT, ask() or "")
    except Wrong as failure:
        return Answer(AnswerStatus.WRONG, str(failure))
    except Refused as failure:
        return Answer(AnswerStatus.REFUSED, str(failure))
    except (NoAnswer, ImportError) as failure:
        return no_answer(failure)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if frames and frames[-1].filename.startswith(f"{ROOT / 'harness'}/"):  # not the model's
            return Answer(AnswerStatus.NO_ANSWER, f"the question failed: {complaint(error)}")
        return Answer(AnswerStatus.REFUSED, complaint(error))


def unbuilt(subject: Subject) -> str:
    """Why a subject cannot be constructed or cannot run its batch; empty if it can."""
    try:
        _ = subject.module
    except NoAnswer as failure:
        return str(failure)
    except Exception as error:
        return f"it could not be made: {complaint(error)}"
    return _untaken(subject)


def _untaken(subject: Subject) -> str:
    """Why a pass over the batch without labels fails, as the model needs other inputs."""
    import torch

    inputs = {name: value for name, value in subject.batch.items() if name != "labels"}
    try:
        with torch.no_grad():
            run(subject.module, inputs)
    except Exception as error:
        return f"a pass over {' and '.join(inputs)} fails: {complaint(error)}"
    return ""
