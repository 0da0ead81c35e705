"""What no single step shows: the rows of an epoch, and the losses of evaluations."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from harness.rank.events import instrument
from harness.rank.probe.recording.losses import Losses, note_reports
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
    assert epoch(run(*ranks), run(reference), same_rows=False) is None


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
    fault = epoch(run(*ranks), run(reference), same_rows=False)
    assert fault is not None
    assert f"{twice} come too often, and {never} never" in fault.text


def test_ranks_of_one_model_see_the_same_rows() -> None:
    assert epoch(run("abcd", "abcd"), run("abcd"), same_rows=True) is None


def reported(*losses: float) -> Run:
    return Run(TWO, [], reported=[[(2 * n, "eval_loss", x) for n, x in enumerate(losses, 1)]])


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
    answer = evaluation(reported(*losses), reported(1.3855, 1.2))
    if isinstance(answer, Broken):
        assert answer.meaning == meaning
    else:
        assert ("note" if answer else None) == meaning


def test_losses_are_recorded_as_packages_report_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Trainer:
        def log(self, values: dict[str, float]) -> None: ...

    class SummaryWriter:
        def add_scalar(self, tag: str, value: float, step: int = 0) -> None: ...

    class _EvaluationLoop:
        def on_run_end(self) -> list[dict[str, float]]:
            return [{"val_loss": 4.0, "val_accuracy": 0.5}]

    places = {
        "transformers.trainer": {"Trainer": Trainer},
        "torch.utils.tensorboard.writer": {"SummaryWriter": SummaryWriter},
        "lightning.pytorch.loops.evaluation_loop": {"_EvaluationLoop": _EvaluationLoop},
    }
    for name, space in places.items():
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**space))  # type: ignore[arg-type]
    reports: Losses = []
    subscription = note_reports(reports, lambda: 3)
    instrument.refresh()  # a second time changes nothing
    Trainer().log({"eval_loss": 1.0, "loss": 2.0, "epoch": 1.0})
    SummaryWriter().add_scalar("valid/loss", 3.0, 7)
    SummaryWriter().add_scalar("train/loss", 3.0, 7)
    _EvaluationLoop().on_run_end()
    losses = [("eval_loss", 1.0), ("valid/loss", 3.0), ("val_loss", 4.0)]
    assert reports == [(3, name, loss) for name, loss in losses]
    subscription.end()
