"""probe names a known bug only if the installed releases have it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.bugs.lookup import why_affected
from harness.rank.probe.findings.unlike import UNLIKE
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.compare.faults import Broken
from harness.training.probe.layouts import ACCUMULATION, BOTH, RANKS, Layout, Settings
from harness.training.probe.notes import without_numbers
from harness.training.probe.signatures import Sign, known_bugs, with_signature
from tests.probe.probing import Probing

ALL = {"ranks", "accumulation", "both", "resume"}
TWICE = (
    Sign("accumulation", "gradient", 0.3333, "1/k", 1),
    Sign("both", "gradient", 0.3333, "1/k", 1),
)
EXPERTS = next(why for why in UNLIKE.values() if "experts" in why)
BUGGY = {"transformers": "5.3.0", "accelerate": "1.13.0"}


NEWEST = {"transformers": "5.23.0", "accelerate": "1.13.0"}
BROKEN = tuple(Sign(kind, "gradient", step=1) for kind in ("ranks", "accumulation", "both"))
OF_EXPERTS = Sign("", f"MoeBlock (layers.#mlp) {without_numbers(EXPERTS)}", note=True)


@pytest.mark.parametrize(
    ("signs", "layouts", "releases", "facts", "names"),
    [
        (TWICE, ALL, BUGGY, {}, ["trainer_gas_twice"]),
        (TWICE[:1], {"accumulation"}, BUGGY, {}, ["trainer_gas_twice"]),
        (TWICE[:1], ALL, BUGGY, {}, []),  # with that bug, both would be broken as well
        (TWICE, ALL, {**BUGGY, "transformers": "5.5.4"}, {}, []),
        (TWICE, ALL, {**BUGGY, "transformers": "99.0"}, {}, []),  # nobody knows
        (TWICE, ALL, {"torch": "2.13.0"}, {}, []),
        ((Sign("ranks", "gradient", 2.0, "ranks", 1),), ALL, BUGGY, {}, []),
        ((), ALL, BUGGY, {}, []),
        (TWICE, ALL, BUGGY, {"imported": {"transformers/trainer.py"}}, ["trainer_gas_twice"]),
        (TWICE, ALL, BUGGY, {"imported": {"a.py"}}, []),  # the script does not have that code
        ((*BROKEN, OF_EXPERTS), ALL, NEWEST, {}, ["moe_aux_world"]),
        (BROKEN, ALL, NEWEST, {}, []),  # the model has no experts
    ],
)
def test_a_bug_is_named_if_all_its_signs_are_there_and_the_releases_have_it(
    signs: tuple[Sign, ...],
    layouts: set[str],
    releases: dict[str, str],
    facts: dict[str, Any],
    names: list[str],
) -> None:
    bugs = with_signature(signs, layouts, releases, why_affected, **facts)
    assert [bug.name for bug in bugs] == names


def test_a_bug_of_split_models_is_named_only_where_ranks_have_the_same_rows() -> None:
    for same_rows, names in ((True, ["tp_activation_partial"]), (False, [])):
        bugs = with_signature(BROKEN[:1], {"ranks"}, NEWEST, why_affected, same_rows=same_rows)
        assert [bug.name for bug in bugs if bug.name.startswith("tp_")] == names


CONDITIONS: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "needs a linear layer": ({}, {"torch.nn.modules.linear.Linear": {}}),
    "needs an LSTM": ({}, {"torch.nn.modules.rnn.LSTM": {}}),
    "needs the Trainer": ({"trainer": True}, {}),
    "needs several ranks": ({"ranks": {"above": 1}}, {}),
    "needs 3 ranks": ({"ranks": {"above": 2}}, {}),
    "needs micro-batches in bf16": (
        {"gradient_accumulation_steps": {"above": 1}, "precision": "bf16"},
        {},
    ),
}


@pytest.mark.launch
def test_a_bug_is_not_named_if_no_layout_can_set_it_off(probing: Probing, tmp_path: Path) -> None:
    """A LLaMA was said to have a bug of GPT-2, and rows from a list one of streams."""
    bugs = [
        {"name": name, "settings": settings, "seen": seen, "certain": False, "affected": {"no": []}}
        for name, (settings, seen) in CONDITIONS.items()
    ]
    (tmp_path / "bugs.json").write_text(json.dumps({"packages": {}, "bugs": bugs}))
    settings = Settings(layouts=(RANKS,), bugs=str(tmp_path / "bugs.json"))
    answers = probing("ddp.py", "--batch-size {rows}", settings)
    assert answers.impossible == {"needs an LSTM", "needs the Trainer", "needs 3 ranks"}
    twice = Broken("gradient", "", 1 / 3, "divided by the accumulation steps twice")
    layouts = [Layout(kind, kind, 1 + (kind == BOTH), 3) for kind in (ACCUMULATION, BOTH)]
    answers.layouts = [Compared(layout, step=1, broken=[twice]) for layout in layouts]
    answers.releases, answers.imported = BUGGY, frozenset()
    for impossible, names in (((), ["trainer_gas_twice"]), (("trainer_gas_twice",), [])):
        answers.impossible = frozenset(impossible)
        assert [bug.name for bug in known_bugs(answers, why_affected)] == names
