"""What report.md proposes, as an edit of the Trainer."""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def by_function(function: Any) -> api.Edits:
    """The loss that the model uses decides whether labels are shifted, not its ``loss_type``."""
    import libcst as cst
    import libcst.matchers as m

    query = m.Call(func=m.Attribute(m.Name("LOSS_MAPPING"), m.Name("get")))
    for call in m.findall(function, query):
        yield call, cst.parse_expression('getattr(model_to_inspect, "loss_function", None)')
