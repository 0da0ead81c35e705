"""What else could be wrong with a streaming dataset that is resumed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.call_edits import calls, without_call
from scenarios.common.mutation import mutation

FILE = "datasets/iterable_dataset.py"
TABLES, ROW = "ArrowExamplesIterable._iter_arrow", "RebatchedArrowExamplesIterable._iter_arrow"
RESUME, APPLY = "IterableDataset._prepare_ex_iterable_for_iteration", "apply_function"


@mutation(FILE, ROW, "a resumed stream leaves out one row")
def one_row_too_far(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    skipped = m.Subscript(
        slice=[m.SubscriptElement(m.Index(m.SimpleString('"num_chunks_since_previous_state"')))]
    )
    choice: Any
    for choice in m.findall(function, m.IfExp(body=skipped)):
        resumed = cst.Call(cst.Name("bool"), [cst.Arg(choice.body.deep_clone())])
        yield choice, choice.with_changes(body=cst.BinaryOperation(choice.body, cst.Add(), resumed))


@mutation(FILE, RESUME, "a resumed stream begins once more")
def state_not_loaded(function: Any) -> api.Edits:
    return without_call(function, "load_state_dict")


@mutation(FILE, APPLY, "map() gives the rows as they were")
def map_not_applied(function: Any) -> api.Edits:
    import libcst as cst

    for call in calls(function, "function"):
        yield call, cst.parse_expression("{}")


@mutation(FILE, TABLES, "the first row of each table never comes")
def first_row_lost(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    table: Any
    for table in m.findall(function, m.Yield(value=m.Tuple())):
        yield table, table.with_changes(value=cst.parse_expression("key, pa_table.slice(1)"))


MUTATIONS = (
    one_row_too_far,
    state_not_loaded,
    map_not_applied,
    first_row_lost,
    replace(map_not_applied, variant="buggy"),
    replace(first_row_lost, variant="buggy"),
)
