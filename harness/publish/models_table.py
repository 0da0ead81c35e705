"""Models by relations, as recorded for the newest release: docs/models_table.md and the site."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.models import recorded
from harness.models.answer import Answer, Status
from harness.models.recorded import Recorded
from harness.models.relations import QUESTIONS
from harness.system.text import markdown_table

SIGNS = {Status.RIGHT: "✓", Status.WRONG: "✗", Status.REFUSED: "-", Status.NO_ANSWER: ""}
"""Each status in a cell of the table."""

LEGEND = (
    "✓ right, ✗ wrong, - refused: the model raises an error, or says that it does not offer it. An "
    "empty cell has no answer. A release behind ✗ is the oldest recorded one from which on it is "
    "wrong; without one, it is wrong in every release that was recorded and has the model."
)


@dataclass(frozen=True)
class Cell:
    """A relation of a model."""

    relation: str
    status: Status
    since: str
    """The oldest recorded release from which on it is wrong, if one before it was not."""
    reason: str

    def __str__(self) -> str:
        return f"{SIGNS[self.status]} {self.since}".strip()


@dataclass(frozen=True)
class Line:
    """A model, and what is known of it."""

    model: str
    cells: tuple[Cell, ...]

    @property
    def wrong(self) -> list[Cell]:
        return [cell for cell in self.cells if cell.status is Status.WRONG]


def newest() -> Recorded | None:
    """The newest recorded release."""
    return next(reversed(recorded.all_recorded()), None)


def lines() -> Iterator[Line]:
    """A line for each model of the newest recorded release."""
    one = newest()
    for model, answers in sorted(one.answers.items()) if one else ():
        yield Line(model, tuple(_cell(model, r, answers[r]) for r in QUESTIONS if r in answers))


def _cell(model: str, relation: str, answer: Answer) -> Cell:
    first, before = recorded.wrong_since(model, relation)
    return Cell(relation, answer.status, first if before else "", answer.reason)


def page() -> str:
    """The page docs/models_table.md."""
    one, shown = newest(), list(lines())
    parts = ["# Which features of which model are right", NOTE]
    if one is None:
        return "\n\n".join([*parts, "No release was recorded."]) + "\n"
    releases = ", ".join(each.release for each in recorded.all_recorded())
    wrong = sum(len(line.wrong) for line in shown)
    parts += [
        f"{len(shown)} causal language models of transformers {one.release}, asked on {one.day} on "
        f"a CPU: {wrong} cells are wrong. [models](models.md) explains the relations. Recorded "
        f"releases: {releases}. `distributed-bugs models MODEL` asks again and prints reasons.",
        LEGEND,
        _table(shown),
    ]
    return "\n\n".join(parts) + "\n"


NOTE = "<!-- Made by `python -m harness pages`. Write nothing here. -->"


def _table(shown: list[Line]) -> str:
    asked = [r for r in QUESTIONS if any(c.relation == r for line in shown for c in line.cells)]
    rows = []
    for line in shown:
        of = {cell.relation: str(cell) for cell in line.cells}
        rows.append([line.model, *(of.get(relation, "") for relation in asked)])
    return markdown_table(["model", *(name.replace("_", " ") for name in asked)], rows)
