"""What no single step shows: the rows of an epoch, and the losses of evaluations."""

from __future__ import annotations

import pytest

from harness.rank.probe.recording.losses import evaluations
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.whole_run import epoch, evaluation
from harness.training.probe.layouts import RANKS, Layout
from harness.training.probe.runner import Run

TWO = Layout("2 ranks", RANKS, 2)


def run(*ranks: str) -> Run:
    """A run whose ranks saw these rows: a letter is a row, and spaces separate steps.

    The last list has the rows that no step used, here none.
    """
    return Run(TWO, [], seen=[[*map(list, rank.split()), []] for rank in ranks])


@pytest.mark.parametrize(
    ("reference", "ranks"),
    [
        ("abcd efgh", ("ab ef", "cd gh")),
        ("abcd efgh", ("ha bc", "de fg")),  # another order
        ("abcd efgh i", ("ab ef i", "cd gh a")),  # the last step is filled up
        ("abcd efgh i", ("ab ef", "cd gh")),  # or left out
        ("abcd efgh ijk", ("ab ef ij", "cd gh ka")),
    ],
)
def test_an_epoch_with_the_rows_of_the_reference_is_right(
    reference: str, ranks: tuple[str, ...]
) -> None:
    assert not [*epoch(run(*ranks), run(reference), same_rows=False)]


@pytest.mark.parametrize(
    ("reference", "ranks", "twice", "never"),
    [
        ("abcd efgh", ("ab ef", "ab ef"), 4, 4),
        ("abcd efgh", ("ab ef", "cd ga"), 1, 1),  # nothing is to be filled up
        ("abcd efgh", ("ab", "cd"), 0, 4),
        ("abcd efgh i", ("ab ae i", "cd fg h"), 1, 0),  # before the last step
    ],
)
def test_rows_that_come_twice_or_never_are_counted(
    reference: str, ranks: tuple[str, ...], twice: int, never: int
) -> None:
    (fault,) = epoch(run(*ranks), run(reference), same_rows=False)
    assert f"{twice} come too often, and {never} never" in fault.text


def test_ranks_of_one_model_see_the_same_rows() -> None:
    assert not [*epoch(run("abcd", "abcd"), run("abcd"), same_rows=True)]


def reported(*losses: float) -> Run:
    return Run(TWO, [], reported=[(2 * n, "eval_loss", x) for n, x in enumerate(losses, 1)])


@pytest.mark.parametrize(
    ("losses", "meaning"),
    [
        ((1.3855,), None),
        ((1.387,), None),
        ((1.5,), "note"),
        ((2.7710,), "summed over the ranks, not averaged"),
        ((1.3855, 0.6), "divided by the number of ranks twice"),
        ((1.3855, 1.2, 7.0), None),  # the reference has not reported the last one
    ],
)
def test_a_loss_of_an_evaluation_is_that_of_the_reference(
    losses: tuple[float, ...], meaning: str | None
) -> None:
    answer = next(evaluation(reported(*losses), reported(1.3855, 1.2)), None)
    if isinstance(answer, Broken):
        assert answer.meaning == meaning
    else:
        assert ("note" if answer else None) == meaning


def test_only_losses_of_evaluations_are_recorded() -> None:
    reported = [{"eval_loss": 1.0, "loss": 2.0}, "valid/loss", 3.0, "train/loss", 3.0]
    reported += [[{"val_loss": 4.0, "val_accuracy": 0.5}]]
    losses = [("eval_loss", 1.0), ("valid/loss", 3.0), ("val_loss", 4.0)]
    assert sorted(evaluations(reported)) == sorted(losses)
