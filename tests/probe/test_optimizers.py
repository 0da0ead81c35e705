"""The optimizer has what is trained: every other parameter stays as it is, in all layouts."""

from __future__ import annotations

import pytest

from harness.system.errors import Inconclusive
from harness.training.probe.answers import Answers
from harness.training.probe.compare.plausibility import STALE, UNHELD
from harness.training.probe.compare.relations import UNHELD as RELATION
from harness.training.probe.layouts import RANKS, Settings
from tests.probe.probing import BEGIN, Probing, first_broken, layout, refused

pytestmark = pytest.mark.launch

SCRIPT = (
    BEGIN
    + """
body, head = nn.Sequential(nn.Linear(4, 8), nn.Tanh()), nn.Linear(8, 1)
model = nn.Sequential(body, head)
AdamW = torch.optim.AdamW
after, before = lambda: None, lambda: None
HOW
run, rows = DDP(model), int(sys.argv[1])
for step in range(4):
    start = (step * world + rank) * rows
    x, y = data[start :][:rows], labels[start :][:rows]
    model.zero_grad()
    loss = mse_loss(run(x), y)
    loss.backward()
    before()
    [each.step() for each in optimizers]
    after()
"""
)

MASTERS = """
model.to(torch.bfloat16)
data, labels = data.bfloat16(), labels.bfloat16()
masters = [nn.Parameter(p.detach().float()) for p in model.parameters()]
optimizers = [torch.optim.SGD(masters, 1e-5)]
def before():
    for p, master in zip(model.parameters(), masters):
        master.grad = p.grad.float()
def after():
    for p, master in zip(model.parameters(), masters):
        p.data.copy_(master)
"""
EMA = """
average = copy.deepcopy(model)
optimizers = [AdamW(model.parameters(), 1e-2)]
def after():
    for p, mean in zip(model.parameters(), average.parameters()):
        mean.data.lerp_(p.data, 0.1)
"""
BY_HAND = """
optimizers = [AdamW(head.parameters(), 1e-2)]
def after():
    for p in body.parameters():
        p.data -= 1e-2 * p.grad
"""
TWO = "optimizers = [AdamW(body.parameters(), 1e-2), AdamW(head.parameters(), 1e-2)]"
FROZEN = "body.requires_grad_(False); optimizers = [AdamW(head.parameters(), 1e-2)]"
STALE_ALL = "optimizers = [AdamW(copy.deepcopy(model).parameters(), 1e-2)]"
STALE_BODY = """
old = copy.deepcopy(body)
optimizers = [AdamW([*old.parameters(), *head.parameters()], 1e-2)]
"""
EMPTY = """
model.requires_grad_(False)
optimizers = [AdamW([{"params": [p for p in model.parameters() if p.requires_grad]}], 1e-2)]
model.requires_grad_(True)
"""


def probed(probing: Probing, how: str) -> Answers:
    return probing(SCRIPT.replace("HOW", how), "{rows}", Settings(layouts=(RANKS,)))


@pytest.mark.slow
@pytest.mark.parametrize("how", [FROZEN, TWO, MASTERS, EMA, BY_HAND])
def test_an_optimizer_that_has_what_is_trained_or_a_loop_that_steps_it_is_right(
    probing: Probing, how: str
) -> None:
    answers = probed(probing, how)
    assert not refused(answers)
    assert not [note for note in answers.notes if note.startswith(UNHELD)]
    assert RELATION not in {relation for relation, _ in first_broken(answers).values()}


@pytest.mark.parametrize(
    ("how", "text"),
    [
        (
            "optimizers = [AdamW(head.parameters(), 1e-2)]",
            "no optimizer has 0.0.weight, 0.0.bias, which get gradients and stay. No fault if",
        ),
        (STALE_BODY, "the optimizer has 2 tensors without a gradient that no model uses"),
    ],
)
def test_parameters_that_no_optimizer_has_are_noted(probing: Probing, how: str, text: str) -> None:
    answers = probed(probing, how)
    (note,) = [note for note in answers.notes if note.startswith(UNHELD)]
    assert text in note
    assert first_broken(answers) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("how", "why"), [(STALE_ALL, STALE), (EMPTY, "Were they frozen when")])
def test_an_optimizer_that_steps_nothing_is_the_reason_for_no_answer(
    probing: Probing, how: str, why: str
) -> None:
    with pytest.raises(Inconclusive, match=r"no optimizer has 0\.0\.weight, 0\.0\.bias") as refusal:
        probed(probing, how)
    assert why in str(refusal.value)


def test_a_layout_whose_optimizer_is_stale_is_broken(probing: Probing) -> None:
    how = "optimizers = [AdamW((copy.deepcopy(model) if world > 1 else model).parameters(), 1e-2)]"
    answers = probed(probing, how)
    assert first_broken(answers) == {RANKS: (RELATION, "")}
    text = layout(answers, RANKS).broken[0].text
    assert text.startswith("rank 0: no optimizer has 0.0.weight, 0.0.bias, 1.weight and 1 more")
    assert STALE in text
