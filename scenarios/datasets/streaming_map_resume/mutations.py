"""What else could be wrong with a streaming dataset that is resumed."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from scenarios.common.edits import calls, without_call
from scenarios.common.mutation import mutation

FILE = "datasets/iterable_dataset.py"
TABLES, RESUME = (
    "ArrowExamplesIterable._iter_arrow",
    "IterableDataset._prepare_ex_iterable_for_iteration",
)
ROW, APPLY = "RebatchedArrowExamplesIterable._iter_arrow", "apply_function"


def first_row_lost(function: Any) -> Edits:
    """A table without its first row."""
    import libcst as cst
    import libcst.matchers as m

    for each in m.findall(function, m.Yield(value=m.Tuple())):
        yield (
            each,
            each.with_changes(  # type: ignore[attr-defined]
                value=cst.parse_expression("key, pa_table.slice(1)")
            ),
        )


def not_applied(function: Any) -> Edits:
    """Nothing in place of what the function gives back."""
    import libcst as cst

    for call in calls(function, "function"):
        yield call, cst.parse_expression("{}")


@mutation("one_row_too_far", FILE, ROW, "a resumed stream leaves out one row")
def too_far(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    skipped = m.Subscript(
        slice=[m.SubscriptElement(m.Index(m.SimpleString('"num_chunks_since_previous_state"')))]
    )
    for choice in m.findall(function, m.IfExp(body=skipped)):
        body: Any = choice.body  # type: ignore[attr-defined]
        resumed = cst.Call(cst.Name("bool"), [cst.Arg(body.deep_clone())])
        yield choice, choice.with_changes(body=cst.BinaryOperation(body, cst.Add(), resumed))


@mutation("state_not_loaded", FILE, RESUME, "a resumed stream begins once more")
def not_loaded(function: Any) -> Edits:
    return without_call(function, "load_state_dict")


@mutation("map_not_applied", FILE, APPLY, "map() gives the rows as they were")
def map_not_applied(function: Any) -> Edits:
    return not_applied(function)


@mutation("first_row_lost", FILE, TABLES, "the first row of each table never comes")
def row_lost(function: Any) -> Edits:
    return first_row_lost(function)


@mutation("map_not_applied", FILE, APPLY, "map() gives the rows as they were", variant="buggy")
def buggy_not_applied(function: Any) -> Edits:
    return not_applied(function)


@mutation(
    "first_row_lost", FILE, TABLES, "the first row of each table never comes", variant="buggy"
)
def buggy_row_lost(function: Any) -> Edits:
    return first_row_lost(function)


MUTATIONS = (too_far, not_loaded, map_not_applied, row_lost, buggy_not_applied, buggy_row_lost)
