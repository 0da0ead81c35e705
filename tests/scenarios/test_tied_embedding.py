"""The two scenarios on a tied embedding's gradients: detection, a patch and a defect."""

from __future__ import annotations

from typing import Any

import pytest

from harness.bugs.api.spec import Records
from scenarios.megatron_core.tied_embedding_order import cells
from scenarios.megatron_core.tied_embedding_order import scenario as tied_embedding_order
from scenarios.megatron_core.tied_embedding_order.scenario import embedding_first
from scenarios.megatron_core.tied_embedding_training import scenario as tied_embedding_training
from scenarios.megatron_core.tied_embedding_training.scenario import never_its_own_bucket
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


@pytest.mark.parametrize("module", [tied_embedding_order, tied_embedding_training])
@pytest.mark.parametrize("ranks", [0, 4])
def test_without_records_nothing_is_found_or_triggered(module: Any, ranks: int) -> None:
    records = Records({rank: [] for rank in range(ranks)}, module.Params())
    assert module.detect(records) is None
    assert not module.exercised(records)
    assert not any(module.insufficient_checks(records).values())
    list(module.agree(dict.fromkeys(module.bug.variants, records)))


def function(source: str) -> Any:
    return libcst().parse_module(source).body[0]


def libcst() -> Any:
    return pytest.importorskip("libcst", reason="a box with a bundle makes no overlays")


def test_the_order_fix_moves_only_the_loop() -> None:
    source = "def f():\n    {}\n    g()\n    {}\n    h()\n"
    loop = "for c in model:\n        c.finish_grad_sync()"
    total = "_allreduce_embedding_grads(model)"
    ((_, edit),) = embedding_first(function(source.format(loop, total)))
    expected = f"def f():\n    g()\n    {total}\n    {loop}\n    h()\n"
    assert libcst().Module([edit]).code == expected
    assert not list(embedding_first(function(source.format(loop, loop))))


def test_the_defect_replaces_only_the_check_for_the_shared_embedding() -> None:
    source = "def f(p):\n    return getattr(p, {}, False) and g\n"
    ((_, new),) = never_its_own_bucket(function(source.format('"shared_embedding"')))
    assert new.value == "False"
    assert not list(never_its_own_bucket(function(source.format("'another'"))))
