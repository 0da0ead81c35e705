"""Oddities in the reference's own steps: no comparison of layouts would show them."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch

from harness.rank.probe.exchange import Step
from harness.rank.probe.recording.parameters import Optimized
from harness.training.probe.compare.plausibility import NOT_STEPPED, notes_on_steps

GRADIENT = {"weight": numpy.array([3.0, 4.0])}
WEIGHTS = {"weight": numpy.array([1.0, 0.5])}
FP32, BF16 = 2.0**-23, 2.0**-7
SGD = {"weight_decay": 0, "dampening": 0}
ADAM = {"weight_decay": 0, "eps": 1e-8}


def steps(
    *rates: float,
    applied: float = 1.0,
    update: Any = None,
    kind: str = "SGD",
    clipping: float | None = 0.0,
    eps: float = FP32,
    fresh: bool = True,
    **group: Any,
) -> list[Step]:
    """Steps with these rates, that moved the weights by ``applied`` gradients, or by ``update``."""
    usual, of = SGD if kind == "SGD" else ADAM, applied * GRADIENT["weight"]
    return [
        Step(
            optimizer=kind,
            grad=GRADIENT,
            before=WEIGHTS,
            update={"weight": -rate * of if update is None else update},
            clipping=clipping,
            eps={"weight": eps},
            fresh=fresh,
            group=usual | group,
            rows=[[f"row {number}"]],
            lr=[rate],
        )
        for number, rate in enumerate(rates)
    ]


TWICE, FALLS = (0.1, 0.1), "the learning rate falls"


@pytest.mark.parametrize(
    ("rates", "settings", "note"),
    [
        # A warmup that begins with the second step.
        ((0.1, 0.0, 0.025, 0.05), {}, FALLS),
        ((1e-3, 1e-5, 1.3e-4), {}, FALLS),
        ((0.1, 0.01, 0.02), {}, FALLS),
        # A schedule that goes one way.
        ((0.1, 0.1, 0.1), {}, ""),
        ((0.0, 0.1, 0.2), {}, ""),
        ((0.1, 0.05, 0.025), {}, ""),
        ((0.1, 0.09, 0.1), {}, ""),
        ((0.1, 0.0), {}, ""),
        # The step is not the clipped gradient, whose norm is 5.
        (TWICE, {"applied": 1.0, "clipping": 0.5}, "applied 1 times the gradient of norm 5"),
        (TWICE, {"applied": 2.0, "clipping": 10.0}, "applied 2 times the gradient of norm 5"),
        (TWICE, {"applied": 0.2, "clipping": 0.5}, "applied 0.2 times the gradient of norm 5"),
        # It divides by a scale that nobody multiplied with.
        (TWICE, {"applied": 1 / 65536}, "applied 1.526e-05 times the gradient, and nothing clips"),
        # It is right, or cannot be told.
        (TWICE, {"applied": 0.1, "clipping": 0.5}, ""),
        (TWICE, {"clipping": 10.0}, ""),
        (TWICE, {}, ""),
        (TWICE, {"applied": 7.0, "clipping": None}, ""),  # the gradients are not of the step
        (TWICE, {"applied": 7.0, "fresh": False}, ""),
        (TWICE, {"applied": 7.0, "clipping": 0.5, "nesterov": True}, ""),
        (TWICE, {"applied": 7.0, "clipping": 0.5, "kind": "RMSprop"}, ""),
    ],
)
def test_a_late_warmup_and_a_step_that_is_not_the_clipped_gradient_are_noted(
    rates: tuple[float, ...], settings: dict[str, Any], note: str
) -> None:
    notes = list(notes_on_steps(steps(*rates, **settings)))
    assert [note in each for each in notes] == [True] * bool(note)


@pytest.mark.parametrize(
    ("kind", "group", "update"),
    [
        ("AdamW", {}, [-0.1, -0.1]),
        ("AdamW", {"weight_decay": 0.1}, [-0.11, -0.105]),
        ("Adam", {"weight_decay": 0.1}, [-0.1, -0.1]),
        ("Adam", {"weight_decay": 0.1, "decoupled_weight_decay": True}, [-0.11, -0.105]),
        ("SGD", {"weight_decay": 0.1}, [-0.31, -0.405]),
    ],
)
def test_the_first_step_of_a_formula_is_right(
    kind: str, group: dict[str, Any], update: list[float]
) -> None:
    expected = numpy.array(update)
    assert not list(notes_on_steps(steps(0.1, 0.1, kind=kind, update=expected, **group)))
    (note,) = notes_on_steps(steps(0.1, 0.1, kind=kind, update=0.744 * expected, **group))
    assert "the first step applied 0.744 times" in note


@pytest.mark.parametrize(("eps", "noted"), [(BF16, True), (FP32, False)])
def test_weights_in_16_bits_that_stay_where_they_are_are_noted(eps: float, noted: bool) -> None:
    notes = list(
        notes_on_steps(steps(1e-9, 1e-9, kind="AdamW", update=numpy.array([0.0, 0.0]), eps=eps))
    )
    assert any("moved only 0% of the values" in note for note in notes) == noted


ZERO, INFINITE = numpy.array([0.0, 0.0]), {"weight": numpy.array([3.0, numpy.inf])}


@pytest.mark.parametrize(
    ("rate", "settings", "gradient"),
    [
        (0.1, {"kind": "AdamW", "update": ZERO - 0.05}, INFINITE),
        (1e-9, {"kind": "AdamW", "update": ZERO}, GRADIENT),  # rounding drowns it
        (1e-3, {"kind": "AdamW", "update": ZERO - 1e-3, "eps": BF16}, GRADIENT),
        (0.0, {"eps": BF16}, GRADIENT),
    ],
)
def test_a_step_that_cannot_be_judged_is_not_noted(
    rate: float, settings: dict[str, Any], gradient: Any
) -> None:
    run = [step.copy(grad=gradient) for step in steps(rate, rate, **settings)]
    assert not list(notes_on_steps(run))


@pytest.mark.parametrize(
    ("orders", "noted"),
    [
        (("ab", "cd", "ab", "cd"), True),
        (("ab", "cd", "ef", "ab"), True),
        (("ab", "cd", "ba", "dc"), False),
        (("ab", "ab", "ab", "ab"), False),  # on purpose: it fits one batch
        (("a", "b", "a", "b"), False),
        (("ab", "cd", "ef", "gh"), False),
    ],
)
def test_epochs_of_one_order_are_noted(orders: tuple[str, ...], noted: bool) -> None:
    run = steps(0.1, 0.1, 0.1, 0.1)
    for step, rows in zip(run, orders, strict=True):
        step.rows = [list(rows)]
    assert (
        any("rows of the first in the same order" in note for note in notes_on_steps(run)) == noted
    )


@pytest.mark.parametrize(
    ("copy", "noted"), [([1.0, 0.5], False), ([1.004, 0.498], False), ([1.2, 0.5], True)]
)
def test_weights_that_are_not_those_of_the_optimizer_are_noted(
    copy: list[float], noted: bool
) -> None:
    run = steps(0.1, 0.1)
    for step in run:
        step.before = {**WEIGHTS, "weight in bfloat16": numpy.array(copy)}
        step.eps = {"weight": FP32, "weight in bfloat16": BF16}
    notes = list(notes_on_steps(run))
    assert [note.startswith(NOT_STEPPED) for note in notes] == [True] * noted


@pytest.mark.parametrize(
    ("gradients", "fresh"), [((), True), ((0.0,), True), ((0.0, 1.0), False), ((1.0, 0.0), False)]
)
def test_empty_steps_are_none(gradients: tuple[float, ...], fresh: bool) -> None:
    """torch's get_optimizer_state_dict takes one to make the moments."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    for gradient in gradients:
        weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
    assert Optimized(optimizer, lambda _: "weight").fresh() == fresh
