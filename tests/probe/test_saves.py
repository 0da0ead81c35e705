"""What is saved and evaluated is what was trained: in all layouts it may be something else."""

from __future__ import annotations

import pytest

from harness.rank.probe.findings.saves import EVALUATED, SAVED
from harness.training.probe.layouts import RANKS, RESUME, Settings
from tests.probe.probing import Probing, first_broken, refused

pytestmark = pytest.mark.launch

SCRIPT = """
import copy, os, sys, torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
data, labels = torch.randn(96, 4), torch.randn(96, 1)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
begin, teacher = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
torch.save(model.state_dict(), "first.pt")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run, rows = nn.parallel.DistributedDataParallel(model), int(sys.argv[1])


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
    nn.functional.mse_loss(run(x), y).backward()
    optimizer.step()
    HOW
"""

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
    assert not refused(answers)
    assert first_broken(answers) == {}
    return [note for note in answers.notes if note.startswith((SAVED, EVALUATED))]


@pytest.mark.slow
@pytest.mark.parametrize("how", [BOTH, AVERAGES, LAGS, REFERENCE, HALF])
def test_trained_weights_averages_and_references_are_right(probing: Probing, how: str) -> None:
    assert notes(probing, how) == []


@pytest.mark.slow
def test_an_average_that_has_not_begun_is_noted(probing: Probing) -> None:
    """Lightning's EMAWeightAveraging does so, if a training ends before its start."""
    saved, evaluated = notes(probing, LIGHTNING)
    assert saved.startswith(f"{SAVED} (state_dict), although ")
    assert evaluated.startswith(EVALUATED)


@pytest.mark.parametrize(
    ("how", "beginnings"),
    [
        (STALE, [f"{SAVED} (ema), although"]),
        pytest.param(SHADOW, [f"{SAVED} (shadow_params), although"], marks=pytest.mark.slow),
        pytest.param(PAIR, [f"{SAVED} (1), although"], marks=pytest.mark.slow),
        pytest.param(MODULE, [f"{SAVED} (the file), although"], marks=pytest.mark.slow),
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
