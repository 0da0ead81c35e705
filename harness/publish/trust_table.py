"""The table of docs/trust.md: how often a status that is inferred from neighbours is wrong."""

from __future__ import annotations

from collections import Counter

from harness import catalog
from harness.ranges import leave_one_out
from harness.ranges.leave_one_out import RIGHT, UNKNOWN, WRONG
from harness.system.errors import Inconclusive
from harness.system.text import markdown_table

NAME = "trust.md"
MARK, END = "<!-- inferred: generated -->", "<!-- end of inferred -->"


def with_table(text: str) -> str:
    """The text of docs/trust.md with a new table. Raises Inconclusive without its marks."""
    before, _, rest = text.partition(MARK)
    if END not in rest:
        raise Inconclusive(f"{NAME} has no marks for its table")
    after = rest.partition(END)[2]
    found = {name: leave_one_out.counts(name) for name in catalog.sound()}
    whole: Counter[str] = sum(found.values(), Counter())
    wrong = [
        f"{name} {' with '.join(map(str, point))}"
        for name in catalog.sound()
        for point, how in leave_one_out.judged(name)
        if how == WRONG
    ]
    words = (
        f"Of {whole.total()} releases with a recorded result, {whole[RIGHT]} are inferred right "
        f"from the others, {whole[UNKNOWN]} stay unknown, and {whole[WRONG]} are inferred wrong: "
        f"{', '.join(wrong) or 'none'}."
    )
    rows = [
        [f"`{name}`", *(str(each[key]) for key in (RIGHT, UNKNOWN, WRONG))]
        for name, each in found.items()
        if each
    ]
    table = markdown_table(["bug", RIGHT, UNKNOWN, WRONG], rows)
    return f"{before}{MARK}\n\n{words}\n\n{table}\n\n{END}{after}"
