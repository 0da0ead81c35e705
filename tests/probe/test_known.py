"""probe names a known bug only if the installed releases have it."""

from __future__ import annotations

import pytest

from harness.bugs.lookup import why_affected
from harness.rank.probe.unlike import UNLIKE
from harness.training.probe.notes import without_numbers
from harness.training.probe.signatures import Sign, with_signature

ALL = {"ranks", "accumulation", "both", "resume"}
TWICE = (
    Sign("accumulation", "gradient", 0.3333, "1/k", 1),
    Sign("both", "gradient", 0.3333, "1/k", 1),
)
EXPERTS = next(why for why in UNLIKE.values() if "experts" in why)
BUGGY = {"transformers": "5.3.0", "accelerate": "1.13.0"}


@pytest.mark.parametrize(
    ("signs", "layouts", "releases", "names"),
    [
        (TWICE, ALL, BUGGY, ["trainer_gas_twice"]),
        (TWICE[:1], {"accumulation"}, BUGGY, ["trainer_gas_twice"]),
        (TWICE[:1], ALL, BUGGY, []),  # with that bug, both would be broken as well
        (TWICE, ALL, {**BUGGY, "transformers": "5.5.4"}, []),
        (TWICE, ALL, {**BUGGY, "transformers": "99.0"}, []),  # nobody knows
        (TWICE, ALL, {"torch": "2.13.0"}, []),
        ((Sign("ranks", "gradient", 2.0, "ranks", 1),), ALL, BUGGY, []),
        ((), ALL, BUGGY, []),
    ],
)
def test_a_bug_is_named_if_all_its_signs_are_there_and_the_releases_have_it(
    signs: tuple[Sign, ...], layouts: set[str], releases: dict[str, str], names: list[str]
) -> None:
    assert [bug.name for bug in with_signature(signs, layouts, releases, why_affected)] == names


def test_a_bug_in_code_that_the_script_did_not_import_is_not_named() -> None:
    for imported, names in (({"transformers/trainer.py"}, ["trainer_gas_twice"]), ({"a.py"}, [])):
        bugs = with_signature(TWICE, ALL, BUGGY, why_affected, imported)
        assert [bug.name for bug in bugs] == names


def test_a_bug_of_experts_is_named_only_if_the_model_has_experts() -> None:
    broken = tuple(Sign(kind, "gradient", step=1) for kind in ("ranks", "accumulation", "both"))
    experts = Sign("", f"MoeBlock (layers.#mlp) {without_numbers(EXPERTS)}", note=True)
    releases = {"transformers": "5.23.0", "accelerate": "1.13.0"}
    for signs, names in (((*broken, experts), ["moe_aux_world"]), (broken, [])):
        bugs = with_signature(signs, ALL, releases, why_affected)
        assert [bug.name for bug in bugs] == names


def test_a_bug_of_split_models_is_named_only_where_ranks_have_the_same_rows() -> None:
    broken = (Sign("ranks", "gradient", step=1),)
    releases = {"transformers": "5.23.0", "accelerate": "1.13.0"}
    for same_rows, names in ((True, ["tp_activation_partial"]), (False, [])):
        bugs = with_signature(broken, {"ranks"}, releases, why_affected, same_rows=same_rows)
        assert [bug.name for bug in bugs if bug.name.startswith("tp_")] == names
