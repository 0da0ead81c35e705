"""Loops that stop gradients on purpose, as in reinforcement learning: right ones have no note. A
note says that a loss is not as steep as its gradient, but only if smaller steps agree."""

from __future__ import annotations

import pytest

from harness.training.probe.layouts import ACCUMULATION, BOTH, RANKS, Settings
from harness.training.probe.slopes import ALONG, Steep, note_on_slope
from tests.probe.probing import (
    BEGIN,
    GIVEN,
    NEVER,
    SUMMED,
    Probing,
    first_broken,
    refused,
    require_right,
)


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    "options",
    [
        "",
        "--lengths --beta 0.1 --clip 0.1",
        "--objective reinforce --lengths",
        "--objective ppo --beta 0.1 --optimizer sgd",
    ],
)
def test_a_right_policy_gradient_is_right_and_has_no_note(probing: Probing, options: str) -> None:
    answers = probing("policy.py", f"{GIVEN} {options}", Settings())
    require_right(answers)
    assert answers.notes == []


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("objective", ["grpo", "reinforce"])
def test_a_mistake_in_it_is_named(probing: Probing, objective: str) -> None:
    words = [*f"{GIVEN} --lengths --objective {objective} --bug".split(), "never divided by k"]
    broken = first_broken(probing("policy.py", words, Settings()))
    assert broken == {ACCUMULATION: ("gradient", NEVER), BOTH: ("gradient", NEVER)}
    words[-1] = "summed over ranks"
    broken = first_broken(probing("policy.py", words, Settings()))
    assert broken == {RANKS: ("gradient", SUMMED), BOTH: ("gradient", SUMMED)}


SCRIPT = (
    BEGIN
    + """


class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head, self.value = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(8, 1)

    def forward(self, x):
        x = self.inner(x).tanh()
        return self.head(x), self.value(x).squeeze(-1)


model = DDP(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
rows = int(sys.argv[1])
for step in range(8):
    x = data[(step * world + rank) * rows :][:rows]
    optimizer.zero_grad()
    logits, value = model(x)
    LOSS
    loss.backward()
    optimizer.step()
"""
)

CRITIC = """
    target = x.sum(1)
    advantage = target - value.detach()
    logs = logits.log_softmax(-1)[:, 0]
    loss = -(advantage * logs).mean() + 0.5 * (value - target).square().mean()
"""
STRAIGHT_THROUGH = """
    hard = torch.nn.functional.one_hot(logits.argmax(-1), 4).float()
    soft = logits.softmax(-1)
    loss = ((hard - soft).detach() + soft).mul(x).sum(-1).square().mean() + value.square().mean()
"""
DRAWN = """
    action = torch.distributions.Categorical(logits=logits).sample()
    reward = (action + x[:, 0] > 1).float()
    loss = value.square().mean() - (reward * logits.log_softmax(-1)[:, 0]).mean()
"""
WRONG = """
    loss = Wrong.apply(logits).square().mean() + value.square().mean()
    print(loss.detach())
"""


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("loss", "noted"),
    [(CRITIC, False), (STRAIGHT_THROUGH, False), (DRAWN, False), (WRONG, True)],
    ids=["critic", "straight through", "drawn", "wrong"],
)
def test_a_stopped_gradient_is_told_from_a_wrong_backward(
    probing: Probing, loss: str, noted: bool
) -> None:
    answers = probing(SCRIPT.replace("    LOSS\n", loss), "{rows}", Settings(layouts=(RANKS,)))
    assert not [comparison for comparison in answers.layouts if comparison.broken]
    drawn = ["the model draws random numbers" in why for why in refused(answers)]
    assert drawn == [True] * (loss is DRAWN)
    assert any(note.startswith(ALONG) for note in answers.notes) is noted
    excuse = any("stops gradients on purpose" in what for what in answers.not_tested)
    assert excuse is not noted


@pytest.mark.parametrize(
    ("slopes", "text"),
    [
        ((0.5, 0.5, 0.501), "falls 0.501 times as fast"),
        ((2.0, 2.0), "falls 2 times as fast"),
        ((0.688, 1.006, 1.0), ""),  # the step was too large: autograd is right
        ((0.759, 1.028, 1.006), ""),
        ((0.5, 0.7, 0.9), ""),
        ((0.0, 0.0, 1e-9), ""),  # the loss of a surrogate, as GRPO's, does not move at all
        ((0.5,), ""),
        ((), ""),
    ],
)
def test_slopes_with_smaller_steps_must_agree(slopes: tuple[float, ...], text: str) -> None:
    note = note_on_slope([Steep(slope, 1e-4) for slope in slopes])
    assert text in note
    assert bool(note) == bool(text)


def test_what_rounding_decides_does_not_count() -> None:
    assert note_on_slope([Steep(0.5, 1e-4), Steep(0.5, 1e-3), Steep(7.0, 2.0), None])
    assert not note_on_slope([Steep(0.5, 1e-4), Steep(0.5, 2.0)])
