"""What else could be wrong with a streaming dataset that is resumed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness import api
from scenarios.common.edits import calls, without_call
from scenarios.common.mutation import mutation

FILE = "datasets/iterable_dataset.py"
TABLES, ROW = "ArrowExamplesIterable._iter_arrow", "RebatchedArrowExamplesIterable._iter_arrow"
RESUME, APPLY = "IterableDataset._prepare_ex_iterable_for_iteration", "apply_function"


@mutation("one_row_too_far", FILE, ROW, "a resumed stream leaves out one row")
def too_far(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    skipped = m.Subscript(
        slice=[m.SubscriptElement(m.Index(m.SimpleString('"num_chunks_since_previous_state"')))]
    )
    choice: Any
    for choice in m.findall(function, m.IfExp(body=skipped)):
        resumed = cst.Call(cst.Name("bool"), [cst.Arg(choice.body.deep_clone())])
        yield choice, choice.with_changes(body=cst.BinaryOperation(choice.body, cst.Add(), resumed))


@mutation("state_not_loaded", FILE, RESUME, "a resumed stream begins once more")
def not_loaded(function: Any) -> api.Edits:
    return without_call(function, "load_state_dict")


@mutation("map_not_applied", FILE, APPLY, "map() gives the rows as they were")
def not_applied(function: Any) -> api.Edits:
    import libcst as cst

    for call in calls(function, "function"):
        yield call, cst.parse_expression("{}")


@mutation("first_row_lost", FILE, TABLES, "the first row of each table never comes")
def row_lost(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    table: Any
    for table in m.findall(function, m.Yield(value=m.Tuple())):
        yield table, table.with_changes(value=cst.parse_expression("key, pa_table.slice(1)"))


MUTATIONS = (
    too_far,
    not_loaded,
    not_applied,
    row_lost,
    replace(not_applied, variant="buggy"),
    replace(row_lost, variant="buggy"),
)
