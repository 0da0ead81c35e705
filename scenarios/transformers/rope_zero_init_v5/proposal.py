"""What report.md proposes, as an edit of LLaMA's frequencies; 197 files have the same line."""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def counted_in_integers(function: Any) -> api.Edits:
    """The positions are integers, which zero.Init does not cast, and become floats afterwards."""
    import libcst as cst
    import libcst.matchers as m

    counting = m.Call(func=m.Attribute(m.Name("torch"), m.Name("arange")))
    calls: list[Any] = list(m.findall(function, counting))
    for call in calls:
        others = [arg for arg in call.args if arg.keyword is None]
        integers = call.with_changes(
            args=[*others, cst.Arg(cst.parse_expression("torch.int64"), cst.Name("dtype"))]
        )
        yield call, cst.Call(cst.Attribute(integers, cst.Name("float")))
