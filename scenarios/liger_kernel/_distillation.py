"""A student that learns a teacher's distribution at some positions of a text and not at others.

Positions whose label is ``ignore_index``, such as those of a prompt or of padding, must not change
the gradient. So the reference is upstream's own loss on the other positions alone. With the fault
the part that compares the student with the teacher is that of all positions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import features

if TYPE_CHECKING:
    from torch import Tensor

VOCABULARY, WIDTH, IGNORED = 32, 8, -100
RATE = 0.5
"""Of SGD."""


def check_params(params: Any) -> None:
    """Raise ValueError for values that do not go together."""
    if params.ignored >= params.positions:
        raise ValueError("ignored must be less than positions")


oracle = features.Feature("exactly that follows if the teacher is followed at all positions")

MakeLoss = Callable[[float, float], Any]
"""Makes upstream's loss from the weights of its two parts."""


def train(ctx: api.Context, make: MakeLoss) -> None:
    """Train the student; compare each gradient with that of the positions that have a label."""
    import torch

    p = ctx.params
    torch.manual_seed(ctx.seed)
    student, teacher = (_model().to(ctx.device) for _ in range(2))
    optimizer = torch.optim.SGD(student.parameters(), lr=RATE)

    def loss(hard: float, soft: float, at: Any, labels: Tensor) -> Tensor:
        inputs = student["embedding"](tokens[at]), student["head"].weight
        outputs = teacher["embedding"](tokens[at]).detach(), teacher["head"].weight.detach()
        value: Tensor = make(hard, soft)(*inputs, *outputs, labels[at])
        return value

    for step in api.each(p.steps):
        tokens = torch.randint(VOCABULARY, (p.positions,), device=ctx.device)
        labels = torch.randint(VOCABULARY, (p.positions,), device=ctx.device)
        some, every = slice(p.ignored, None), slice(None)
        expected = features.of_losses(student, [loss(p.hard, 1 - p.hard, some, labels)])
        hard = features.of_losses(student, [loss(1, 0, some, labels)])
        soft = features.of_losses(student, [loss(0, 1, every, labels)])
        # The sum over all positions is divided by their number, or by the number of labels.
        share = (p.positions - p.ignored) / p.positions
        faulty = [
            {
                name: scale * (p.hard * share * hard[name] + (1 - p.hard) * soft[name])
                for name in hard
            }
            for scale in (1, 1 / share)
        ]
        optimizer.zero_grad()
        masked = labels.clone()
        masked[: p.ignored] = IGNORED
        value = loss(p.hard, 1 - p.hard, every, masked)
        value.backward()
        actual = features.gradients(student)
        documented = min(faulty, key=lambda parts: _distance(actual, parts))
        features.record(ctx, step, value, actual, expected, documented)
        optimizer.step()


def _model() -> Any:
    """An embedding and a head without bias."""
    import torch

    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
    return torch.nn.ModuleDict({"embedding": torch.nn.Embedding(VOCABULARY, WIDTH), "head": head})


def _distance(gradients: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    return sum(float((gradients[name] - others[name]).norm()) for name in gradients)


def exercised(records: api.Records) -> api.Exercise:
    """Some positions had the label ignore_index, and the teacher's part of the loss was used."""
    p = records.params
    text = f"{p.ignored} of {p.positions} positions without a label"
    return api.Exercise.of(p.ignored > 0, text, "all positions have a label")
