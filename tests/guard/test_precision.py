"""Steps of weights in 16 bits, which their rounding may lose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from harness.rank.guard.checks.precision import precision
from harness.rank.guard.checks.views import Memory, View
from harness.rank.guard.posting.packing import ParameterTable
from harness.rank.guard.posting.posts import Alarm, ParameterFacts, Post, Update
from harness.rank.training.layouts import Described
from tests.guard.trainer import Trainer

NAMES, SIZE = [f"layer.{number}" for number in range(12)], 64
Rounding = Callable[[Tensor], Tensor]


def nearest(values: Tensor) -> Tensor:
    return values.bfloat16().float()


def at_random(values: Tensor) -> Tensor:
    """Add a random part of the bits that are cut."""
    noise = torch.randint(0, 2**16, values.shape, dtype=torch.int32)
    return ((values.view(torch.int32) + noise) & -(2**16)).view(torch.float32)


def views(
    rate: float,
    rounding: Rounding = nearest,
    dtype: str = "bfloat16",
    kind: str = "SGD",
    parameters: int = len(NAMES),
) -> list[View]:
    """What a rank saw of one step of SGD, whose gradients are 1: 12 parameters of 64 values."""
    torch.manual_seed(0)
    weight = nearest(torch.randn(len(NAMES) * SIZE))
    gradient = torch.ones(len(NAMES) * SIZE)
    after = rounding(weight - rate * gradient)
    group = {"lr": rate, "momentum": 0.0, "weight_decay": 0.0}
    parts = zip(weight.split(SIZE), gradient.split(SIZE), strict=True)
    chosen = range(parameters)
    updates = [Update(n, 16, [], 0.0, rate, group) for n in chosen]
    post = Post(0, 0, 1, parameters=ParameterFacts(kind, updates=updates))
    post.tensors["updates"] = torch.cat([torch.cat([w[::4], g[::4]]) for w, g in parts])
    post.tensors["weights"] = after[::4]
    described = [Described(n, SIZE, SIZE, 0, SIZE, [], n, True, True, dtype) for n in NAMES]
    return [View(post, ParameterTable.of(described), None)]


def alarms(steps: list[list[View]]) -> list[Alarm]:
    memory = Memory()
    return [alarm for step in steps for alarm in precision(step, memory)]


SHORT, LONG = 1e-3, 0.1


def test_steps_that_are_lost_in_the_rounding_are_told_once() -> None:
    (alarm,) = alarms([views(SHORT)] * 9)
    assert (alarm.check, alarm.kind, alarm.ranks) == ("precision", "still", [0])
    assert "bfloat16 rounds their steps away" in alarm.text
    assert alarm.size < 0.5


def with_hooks(step: View) -> None:
    """They may round at random: by chance, that moves none of the few weights in some checks."""
    step.post.loop.hooked = True


def with_one_gradient(step: View) -> None:
    """Of rare words few values have a gradient, and a step of one may be short: track 3 of
    modded-nanogpt had an alarm by one value in each of three checks."""
    step.post.tensors["updates"][SIZE // 4 + 1 : SIZE // 2] = 0.0


@pytest.mark.parametrize(
    ("change", "silent", "told"),
    [(lambda step: None, 2, 9), (with_hooks, 5, 40), (with_one_gradient, 9, 80)],
)
def test_a_small_model_is_told_after_so_many_checks(
    change: Callable[[View], None], silent: int, told: int
) -> None:
    small = views(SHORT / 2, parameters=1)
    change(small[0])
    assert alarms([small] * silent) == []
    (alarm,) = alarms([small] * told)
    assert "checked steps in a row" in alarm.text


def warm_up() -> Iterator[float]:
    yield from (1e-5 * step for step in range(20))


def decay() -> Iterator[float]:
    yield from (LONG * 0.5**step for step in range(20))


@pytest.mark.parametrize(
    "steps",
    [
        [views(LONG)] * 9,
        [views(LONG, parameters=1)] * 9,
        [views(SHORT, at_random)] * 9,
        [views(SHORT, lambda values: values, dtype="float32")] * 9,
        [views(0.0)] * 9,
        [views(rate) for rate in warm_up()],
        [views(rate) for rate in decay()],
        [views(SHORT), views(SHORT), views(SHORT), views(LONG)] * 3,
    ],
    ids=["long", "small", "at_random", "fp32", "no_rate", "warm_up", "decay", "now_and_then"],
)
def test_right_steps_are_silent(steps: list[list[View]]) -> None:
    assert alarms(steps) == []


def test_another_optimizer_is_not_checked_and_that_is_said() -> None:
    memory = Memory()
    for _ in range(9):
        assert list(precision(views(SHORT, kind="Lion"), memory)) == []
    assert memory.not_seen["precision"] == "whether Lion moves weights in 16 bits is not checked"


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("training", "alarms"),
    [("ddp bf16_weights short_steps", [("precision", "still")]), ("ddp bf16 short_steps", [])],
)
def test_training_of_weights_in_16_bits(
    under_guard: Trainer, training: str, alarms: list[tuple[str, str]]
) -> None:
    run = under_guard(training, steps=96)  # the shorter a step, the fewer are checked

    assert run.told == alarms
    assert run.codes == [0, 0]
