"""What is saved and evaluated is what was trained: in all layouts it may be something else, and it
may be so in one alone."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import pytest
import torch
from torch import nn

from harness.rank import events
from harness.rank.probe.findings.saves import EVALUATED, LONGEST, SAVED, Saves, mappings
from harness.rank.probe.recording.parameters import NamedParameters
from harness.training.probe.compare.whole_run import checkpoints
from harness.training.probe.layouts import RANKS, RESUME, Layout, Settings
from harness.training.probe.runner import Run
from tests.probe.probing import BEGIN, Probing, require_right
from tests.slow import slow

pytestmark = pytest.mark.launch

SCRIPT = (
    BEGIN
    + """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
begin, teacher = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
torch.save(model.state_dict(), "first.pt")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run, rows = DDP(model), int(sys.argv[1])


def exchange():  # as Lightning's EMAWeightAveraging does
    for mean, p in zip(ema.module.parameters(), model.parameters()):
        mean.data, p.data = p.data, mean.data


def evaluate(model):
    model.eval()
    with torch.no_grad():
        model(data[:8])
    model.train()


for step in range(6):
    start = (step * world + rank) * rows
    x, y = data[start :][:rows], labels[start :][:rows]
    model.zero_grad()
    mse_loss(run(x), y).backward()
    optimizer.step()
    HOW
"""
)

AVERAGES = """ema.update_parameters(model)
    exchange(); evaluate(run); exchange(); evaluate(ema)
    torch.save({"state_dict": ema.module.state_dict()}, "last.pt")"""
BOTH = """ema.update_parameters(model)
    torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, "last.pt")
    torch.save(begin, "reference.pt")"""
LAGS = """evaluate(ema)
    ema.update_parameters(model) if step % 3 == 2 else None
    torch.save({"model": model, "ema": ema.module}, "last.pt")"""
REFERENCE = """evaluate(teacher)
    torch.save((step, {"teacher": teacher.state_dict(), "ref_ema": teacher}), "teacher.pt")
    torch.save(model.state_dict(), "last.pt")"""
STALE = """evaluate(ema)
    torch.save({"model": model.state_dict(), "ema": ema.state_dict()}, "last.pt")"""
SHADOW = """torch.save({"model": model, "shadow_params": list(teacher.parameters())}, "last.pt")"""
PAIR = """torch.save((step, begin), "last.pt")"""
MODULE = """torch.save(teacher, "last.pt")"""
HALF = "torch.save(copy.deepcopy(model).half().state_dict(), 'half.pt')"
LIGHTNING = """exchange()
    evaluate(model)
    saved = {"state_dict": {f"model.{n}": p.clone() for n, p in model.state_dict().items()}}
    exchange()
    torch.save({**saved, "current_model_state": model.state_dict()}, "last.pt")"""


def notes(probing: Probing, how: str) -> list[str]:
    answers = probing(SCRIPT.replace("HOW", how), "{rows}", Settings(layouts=(RANKS,)))
    require_right(answers)
    return [note for note in answers.notes if note.startswith((SAVED, EVALUATED))]


@pytest.mark.parametrize(
    ("how", "beginnings"),
    [
        (STALE, [f"{SAVED} (ema), although"]),
        *slow(
            *((how, []) for how in (BOTH, AVERAGES, LAGS, REFERENCE, HALF)),
            (SHADOW, [f"{SAVED} (shadow_params), although"]),
            (PAIR, [f"{SAVED} (1), although"]),
            (MODULE, [f"{SAVED} (the file), although"]),
            # Lightning's EMAWeightAveraging does so, if a training ends before its start.
            (LIGHTNING, [f"{SAVED} (state_dict), although ", EVALUATED]),
        ),
    ],
)
def test_an_average_that_is_never_updated_and_a_saved_copy_are_noted(
    probing: Probing, how: str, beginnings: list[str]
) -> None:
    for note, beginning in zip(notes(probing, how), beginnings, strict=True):
        assert note.startswith(beginning)


@pytest.mark.slow
def test_what_only_a_save_at_the_end_writes_is_seen(probing: Probing) -> None:
    how = "if step == 1 and sys.argv[2:]: torch.save({'model': begin}, sys.argv[2] + '/x.pt')"
    settings = Settings(save="{dir}", resume="{dir}", layouts=(RESUME,))
    answers = probing(SCRIPT.replace("HOW", how), "{rows}", settings)
    (note,) = [note for note in answers.notes if note.startswith(SAVED)]
    assert note.startswith(f"{SAVED} (model), although 2 steps have moved the model")


def run_that_saves(distance: float, path: str) -> Run:
    return Run(Layout("2 ranks", RANKS, 2, 1), [], saves=[(2, path, "model", distance)])


@pytest.mark.parametrize(
    ("distances", "path", "is_broken"),
    [
        ((1.0, 0.0), "last.pt", True),
        ((0.6, 0.0), "last.pt", True),
        ((0.0, 1.0), "last.pt", True),
        ((0.0, 0.02), "last.pt", False),
        ((0.6, 0.8), "last.pt", False),  # both are averages, of other lengths
        ((250.0, 180.0), "last.pt", False),  # masks of a pruning, or momentum
        ((1.0, 0.0), "ema.pt", False),
        ((1.0, 0.0), "best/model.pt", False),
    ],
)
def test_weights_are_broken_if_one_alone_saves_the_trained_or_the_first_ones(
    distances: tuple[float, float], path: str, is_broken: bool
) -> None:
    assert len(list(checkpoints(*(run_that_saves(one, path) for one in distances)))) == is_broken


WEIGHTS = {"weight": torch.ones(2), "bias": torch.ones(1)}


def places(value: Any) -> list[str]:
    return [where for where, _ in mappings(value, WEIGHTS)]


def test_weights_are_found_in_what_holds_them() -> None:
    assert places({"model": WEIGHTS, "rows": [1, 2]}) == ["model"]
    assert places([[*WEIGHTS.values()], "text"]) == ["0"]
    assert places({"states": [{"ema": WEIGHTS}, (3, WEIGHTS)]}) == ["states.0.ema", "states.1.1"]
    assert places({"a": {"b": {"c": {"d": {"e": WEIGHTS}}}}}) == []


def test_a_long_list_of_lists_takes_no_time() -> None:
    """A thousand entries were searched in each list of a list: of 10^9 tokens, for minutes."""
    rows = [[[7] * LONGEST] * LONGEST] * LONGEST
    began = time.process_time()
    assert places({"rows": rows, "model": WEIGHTS}) == ["model"]
    assert time.process_time() - began < 3


def test_a_list_with_itself_ends() -> None:
    endless: list[Any] = []
    endless += [endless, WEIGHTS]
    assert "1" in list(islice(places(endless), 10))


def test_a_model_without_trained_weights_is_no_copy_of_any() -> None:
    """After three steps the model is replaced, or frozen; then an evaluation looks at a copy."""
    names, model = NamedParameters(), nn.Linear(2, 1)
    list(names.learn(model))
    saves = Saves(names)
    for _ in range(3):
        saves._before_step(events.Gradients(None))
        saves._after_step(events.Step(None))
    model.requires_grad_(False)
    saves._after_step(events.Step(None))
    saves.evaluate(nn.Linear(2, 1))
    assert saves.report() == []
