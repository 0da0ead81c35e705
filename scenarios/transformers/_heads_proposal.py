"""Our proposal for heads that compute a plain mean: they say so."""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def says_plain_mean(head: Any) -> api.Edits:
    """The class of the head says that its loss does not divide by ``num_items_in_batch``."""
    import libcst as cst

    line = cst.parse_statement("accepts_loss_kwargs = False")
    yield head.body, head.body.with_changes(body=[line, *head.body.body])
