"""An evaluation leaves the model in its mode: all layouts are then trained without dropout."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from harness.rank.probe.exchange import Step
from harness.rank.probe.recording.micro_batches import training_modes
from harness.training.probe.compare.plausibility import IN_EVALUATION, left_in_evaluation
from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import BEGIN, Probing, first_broken, refused

SCRIPT = (
    BEGIN
    + """
model = nn.Sequential(nn.Linear(4, 8), LAYER, nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
run, rows = DDP(model), int(sys.argv[1])


def evaluate(model):
    model.eval()
    with torch.no_grad():
        return model(data[:8]).mean()


def attack(x):  # as adversarial training does: the gradient of the input, in evaluation mode
    model.eval()
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).square().mean(), x)
    model.train()
    return (x + 0.01 * gradient.sign()).detach()


for step in range(6):
    start = (step * world + rank) * rows
    x, y = data[start :][:rows], labels[start :][:rows]
    BEFORE
    model.zero_grad()
    mse_loss(run(x), y).backward()
    optimizer.step()
    AFTER
"""
)


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("layer", "before", "after", "is_left"),
    [
        ("nn.Dropout(0.1)", "", "evaluate(run)", True),
        ("nn.Dropout(0.1)", "", "evaluate(model)", True),  # the wrapper stays in training mode
        ("nn.BatchNorm1d(8)", "", "evaluate(run)", True),
        ("nn.Dropout(0.1)", "model.train()", "evaluate(run)", False),
        ("nn.Dropout(0.1)", "", "evaluate(run); run.train()", False),
        ("nn.Dropout(0.1)", "x = attack(x)", "", False),
        ("nn.Dropout(0.1)", "run.train(); loss = run(x).mean()", "model.eval(); model(x)", False),
        ("nn.BatchNorm1d(8).eval()", "", "evaluate(run)", False),
        ("nn.Tanh()", "", "evaluate(run)", False),  # nothing in it has a mode
    ],
)
def test_a_model_that_is_left_in_evaluation_mode_is_noted(
    probing: Probing, layer: str, before: str, after: str, is_left: bool
) -> None:
    text = SCRIPT.replace("LAYER", layer).replace("BEFORE", before).replace("AFTER", after)
    answers = probing(text, "{rows}", Settings(layouts=(RANKS,)))
    assert not refused(answers)
    expected = {RANKS} if layer == "nn.BatchNorm1d(8)" else set()  # its rows are those of a rank
    assert set(first_broken(answers)) == expected
    notes = [note for note in answers.notes if note.startswith(IN_EVALUATION)]
    assert ["from step 2 on" in note for note in notes] == [True] * is_left


class ChannelDropout(nn.Module):
    """It has a rate for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("p", torch.full((8,), 0.1))


class FrozenBatchNorm2d(nn.Module):
    """As torchvision's, in both modes the same."""


@pytest.mark.parametrize(
    ("layer", "modes"),
    [
        (nn.BatchNorm1d(8), {True}),
        (nn.SyncBatchNorm(8).eval(), {False}),
        (nn.BatchNorm1d(8, track_running_stats=False), set()),
        (FrozenBatchNorm2d(), set()),
        (nn.Dropout(0.1), {True}),
        (nn.Dropout(0.0), set()),
        (ChannelDropout(), set()),
    ],
)
def test_dropout_and_batch_norms_depend_on_the_mode(layer: nn.Module, modes: set[bool]) -> None:
    assert training_modes(nn.Sequential(nn.Linear(8, 8), layer)) == modes


@pytest.mark.parametrize(
    ("steps", "notes"),
    [
        ([(0, {True}), (0, {False})], ["from step 2 on"]),
        ([(0, {True}), (1, {False}), (0, {True}), (1, {False})], []),  # a GAN
        ([(0, {True}), (1, {False}), (0, {False})], ["from step 3 on"]),
        ([(0, {True}), (1, set()), (0, {True, False})], []),
        ([(0, {False}), (0, {False})], []),
    ],
)
def test_only_the_steps_that_train_the_model_are_to_be_in_training_mode(
    steps: list[tuple[int, set[bool]]], notes: list[str]
) -> None:
    """The numbers are those of the optimizers."""
    found = [*left_in_evaluation([Step(number=n, modes=modes) for n, modes in steps])]
    assert len(found) == len(notes)
    assert all(part in line for part, line in zip(notes, found, strict=True))
