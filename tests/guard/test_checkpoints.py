"""What is trained after a load is what was trained at the save, also in another process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guard import resumptions
from tests.guard.trainer import Run, Trainer

pytestmark = pytest.mark.launch


def resumed(under_guard: Trainer, form: str, ranks: int = 2, ranks_later: int = 0) -> list[Run]:
    """Save in one group of processes, and resume in another one."""
    folder = under_guard.folder / form
    folder.mkdir()
    script, out = Path(resumptions.__file__), str(folder)
    counts = {"save": ranks, "resume": ranks_later or ranks}
    return [
        under_guard.script(script, form, act, out, ranks=count, saves=out)
        for act, count in counts.items()
    ]


COMPARED = [
    "usual", "without_moments", "moved_and_renamed", "through_memory", "earlier_save",
    "distributed", "sharded", "sharded_while_it_trains", "gathered_shards",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("form", resumptions.RIGHT)
def test_right_resumption_is_compared_with_the_save_and_silent(
    under_guard: Trainer, form: str
) -> None:
    runs = resumed(under_guard, form)
    for run in runs:
        assert run.codes == [0, 0]
        assert run.summary["error"] == ""
        assert run.alarms == []
    assert form not in COMPARED or runs[-1].summary["compared"]["checkpoints"]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["usual", "sharded"])
@pytest.mark.parametrize(("ranks", "ranks_later"), [(2, 1), (1, 2), (2, 3)])
def test_another_number_of_ranks_goes_on_with_the_same_state(
    under_guard: Trainer, form: str, ranks: int, ranks_later: int
) -> None:
    _, run = resumed(under_guard, form, ranks, ranks_later)
    assert run.codes == [0] * ranks_later
    assert run.alarms == []
    assert run.summary["compared"]["checkpoints"] == (6 * 3)


FAULTS = [
    ("moment_lost", "state", ["norm.weight"], [0, 1]),
    ("state_of_a_parameter_lost", "state", ["norm.weight"], [0, 1]),
    ("weight_not_saved", "weights", ["head.weight"], [0, 1]),
    ("names_of_a_wrapper", "weights", None, [0, 1]),
    ("moments_in_another_order", "state", ["norm.weight", "norm.bias"], [0, 1]),
    ("one_rank_lost_a_weight", "weights", ["norm.weight"], [1]),
    ("rate_not_filled", "rate", [], [0, 1]),
    ("shard_lost", "weights", ["body.weight"], [0, 1]),
    ("state_around_the_optimizer_lost", "state", None, [0, 1]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "kind", "parameters", "ranks"), FAULTS)
def test_what_a_resumption_lost_is_told_once(
    under_guard: Trainer, form: str, kind: str, parameters: list[str] | None, ranks: list[int]
) -> None:
    first, run = resumed(under_guard, form)
    assert first.alarms == []
    (alarm,) = run.alarms
    assert (alarm["check"], alarm["kind"]) == ("checkpoints", kind)
    assert alarm["step"] <= 2  # torch makes a state by a step of its own
    assert alarm["ranks"] == ranks
    assert parameters is None or alarm["parameters"] == parameters
    assert run.logs[0].count("ALARM") == 1
    assert "after 4 steps" in alarm["text"]
