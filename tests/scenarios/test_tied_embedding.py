"""The two scenarios on a tied embedding's gradients: detection, a patch and a defect."""

from __future__ import annotations

from typing import Any

from scenarios.megatron_core.tied_embedding_order import cells
from scenarios.megatron_core.tied_embedding_order import scenario as tied_embedding_order
from tests.tampering.changes import Case, changed


def a_gradient_is_missed(records: list[dict[str, Any]]) -> None:
    *_, last_cell = (record for record in records if record["kind"] == "cell")
    owned = next((piece for piece in last_cell["pieces"] if piece["owned"]), None)
    if owned and last_cell["rank"] in (1, 2):
        owned["row"][last_cell["rank"] % 2 + 1] = 0.0
        owned["row"][cells.SHARED] = 1.5


def test_owners_that_miss_a_gradient_are_found_in_any_release() -> None:
    case = Case("tied_embedding_order", "fixed", None, "records", a_gradient_is_missed, "")
    finding = tied_embedding_order.detect(changed(case))
    assert finding is not None
    assert finding.documented
