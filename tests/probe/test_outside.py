"""Weights that something other than the optimizer's step changes."""

from __future__ import annotations

import pytest

from harness.training.probe.compare.plausibility import OUTSIDE
from harness.training.probe.compare.relations import BETWEEN
from harness.training.probe.layouts import ACCUMULATION, RANKS, RESUME, Settings
from tests.probe.probing import (
    GIVEN,
    RESUMED,
    SAVE,
    SCRIPTS,
    Probing,
    first_broken,
    require_right,
    with_bug,
)

pytestmark = pytest.mark.launch

WITH_RESUME = Settings(save=SAVE, resume=RESUMED, layouts=(RANKS, ACCUMULATION, RESUME))


@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "--dtype bfloat16", "--amp float16 --fused --overflow"])
def test_weights_that_all_layouts_change_are_noted(probing: Probing, options: str) -> None:
    words = with_bug("shrinks after each step", options)
    answers = probing("ddp.py", words, Settings(layouts=(RANKS, ACCUMULATION)))
    require_right(answers)
    (noted,) = [note for note in answers.notes if note.startswith(OUTSIDE)]
    assert "by 0.01" in noted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "where"),
    [("shrinks on several ranks", RANKS), ("shrinks in each micro-batch", ACCUMULATION)],
)
def test_weights_that_a_layout_changes_otherwise_are_broken(
    probing: Probing, bug: str, where: str
) -> None:
    answers = probing("ddp.py", with_bug(bug), WITH_RESUME)
    broken = first_broken(answers)
    assert set(broken) == {where}
    assert broken[where][0] in (BETWEEN, "gradient", "weights")


AVERAGE = """
ema = torch.optim.swa_utils.AveragedModel(model)
def evaluate():
    kept = {n: p.detach().clone() for n, p in model.named_parameters()}
    ema.update_parameters(model)
    model.load_state_dict(ema.module.state_dict())
    model.load_state_dict(kept)
"""


@pytest.mark.slow
def test_averages_that_come_and_go_between_steps_are_right(probing: Probing) -> None:
    text = (SCRIPTS / "ddp.py").read_text()
    text = text.replace("accum, batches =", f"{AVERAGE}\naccum, batches =", 1)
    text = text.replace("    scaler.update()\n", "    scaler.update()\n    evaluate()\n", 1)
    answers = probing(text, GIVEN, WITH_RESUME)
    require_right(answers)
    assert answers.notes == []
