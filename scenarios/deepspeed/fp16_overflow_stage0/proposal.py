"""What report.md proposes, the smaller part, as an edit of both optimizers of stage 0."""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.deepspeed._scaler_records import GIVEN_UP

RAISES = f"""
if skip and self.loss_scale_config.dynamic_loss_scale and (
    self.loss_scale_config.cur_scale <= self.loss_scale_config.min_loss_scale
):
    raise Exception("{GIVEN_UP}")
"""


def raises_at_minimum(function: Any) -> api.Edits:
    """An overflow while the scale is at its minimum raises, as at the other stages."""
    import libcst as cst

    line = cst.parse_statement(RAISES)
    yield function.body, function.body.with_changes(body=[line, *function.body.body])
