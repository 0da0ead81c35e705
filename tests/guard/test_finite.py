"""Values that are not finite are told once, with the place where they begin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from harness.rank.guard.checks.finite import has_lost_loss
from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import Alarm, Post
from harness.rank.guard.sampling.module_outputs import ModuleOutputs
from harness.rank.guard.sampling.samples import largest
from harness.rank.training.parameters import Modules
from tests.guard.judging import SIZES, Change, made_posts
from tests.guard.trainer import Trainer

NAN, INF = torch.nan, torch.inf


def step(memory: Memory, number: int, *changes: Change) -> list[Alarm]:
    """The alarms of this check in a step, which the changes make another one on rank 1."""
    posts = made_posts()
    for post in posts:
        post.step, post.tensors["roots"] = number, torch.tensor([2.0])
        values = post.tensors["updates"].split([SIZES[0], SIZES[0], SIZES[1], SIZES[1]])
        post.tensors["gradient_sizes"] = torch.stack([one.abs().max() for one in values[1::2]])
        post.tensors["weight_sizes"] = torch.ones(2)
        post.tensors["sizes_before"] = torch.ones(2)
        if memory.described:
            post.parameters.described = []
    for change in changes:
        change(posts[1])
    sent = [unpacked(packed(post)) for post in posts]
    return [alarm for alarm in judge(sent, memory) if alarm.check == "finite"]


def with_loss(value: float) -> Change:
    return lambda post: post.tensors.update(roots=torch.tensor([1.0, value]))


def ruins(number: int = 1, value: float = NAN) -> Change:
    """The step makes a parameter so."""

    def change(post: Post) -> None:
        post.tensors["weight_sizes"][number] = value
        post.tensors["weights"].split(SIZES)[number][2] = value

    return change


def with_gradient(number: int = 1, name: str = "computed") -> Change:
    def change(post: Post) -> None:
        post.tensors["gradient_sizes"][number] = NAN
        post.tensors[name].split(SIZES)[number][2] = NAN

    return change


def was_ruined(post: Post) -> None:
    ruins()(post)
    post.tensors["sizes_before"][1] = NAN


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([with_loss(NAN), ruins()], "the loss is nan with finite weights: it begins in the forwar"),
        ([with_gradient(), ruins()], "it begins in the backward: the first gradient that is not"),
        ([with_gradient(name="used"), ruins()], "it begins in the reduction of gradients: no rank"),
        ([ruins()], "losses and gradients seem finite, and the step makes bias not finite"),
        ([was_ruined, with_loss(NAN)], "bias was not finite already before this step; in step 1 a"),
    ],
)
def test_weights_that_are_not_finite_are_told_once(changes: list[Change], words: str) -> None:
    memory = Memory()
    assert step(memory, 1) == []
    (alarm,) = step(memory, 2, *changes)
    assert alarm.text.startswith(words)
    assert alarm.ranks == [1]
    assert alarm.parameters == ["bias"]
    assert step(memory, 3, *changes) == []


@pytest.mark.parametrize(
    "changes", [[with_gradient()], [with_gradient(name="used")], [with_gradient(), with_loss(NAN)]]
)
def test_gradients_that_the_optimizer_leaves_out_are_no_fault(changes: list[Change]) -> None:
    memory = Memory()
    assert [step(memory, number, *changes) for number in range(1, 6)] == 5 * [[]]


@pytest.mark.parametrize("finite_steps", [0, 2])
def test_weight_that_is_infinite_on_purpose_is_no_fault(finite_steps: int) -> None:
    """From the beginning on, or as a search has removed a layer."""

    def change(post: Post) -> None:
        ruins(value=-INF)(post)
        post.tensors["sizes_before"][1] = INF

    memory = Memory()
    for number in range(finite_steps):
        assert step(memory, number, lambda _: None) == []
    assert step(memory, 1, change) == []
    assert step(memory, 2, change) == []
    assert [alarm.parameters for alarm in step(memory, 3, change, ruins(0))] == [["weight"]]


def looked(post: Post) -> None:
    post.outputs.calls = [
        ["mask", "Mask", False],
        ["act", "Act", False],
        ["the model", "Model", True],
    ]
    sizes = [[1.0, INF, 0.0], [1.0, NAN, 0.0], [1.0, NAN, 0.0]]
    post.tensors["calls"] = torch.tensor(sizes).flatten()


def test_loss_that_is_not_finite_is_no_fault_if_the_weights_are() -> None:
    """A batch may have no labels. It is said, with the first module in the next step."""
    memory = Memory()
    assert step(memory, 7, with_loss(INF)) == []
    assert "the loss is inf in step 7" in memory.not_seen["loss"]
    assert step(memory, 8, with_loss(NAN), looked) == []
    assert step(memory, 9, with_loss(NAN)) == []
    where = "; in step 8 the first nan is in the output of act (Act)"
    assert memory.not_seen["loss"].endswith(where)


def test_outputs_are_looked_at_only_if_another_step_can_show_it() -> None:
    def lost(*changes: Change) -> bool:
        post = made_posts()[0]
        post.tensors.update(weight_sizes=torch.ones(2), roots=torch.ones(1))
        for change in changes:
            change(post)
        return has_lost_loss(post)

    assert not lost()
    assert lost(with_loss(NAN))
    assert not lost(with_loss(NAN), ruins())


# -- modules --


class Scores(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def alarm_text(*functions: Callable[[Any], Any]) -> str:
    """What is told of a model of such modules, the loss of which is not finite."""
    model = nn.Sequential(*[Scores(function) for function in functions])
    outputs = ModuleOutputs(_only(model))
    loss = model(torch.ones(2, 3))
    outputs.end()
    assert not any(one._forward_hooks for one in model.modules())

    def change(post: Post) -> None:
        post.outputs.calls, post.tensors["calls"] = outputs.calls, torch.stack(outputs.sizes)

    memory = Memory()
    total = float(loss["scores"].sum() if isinstance(loss, dict) else loss.sum())
    assert step(memory, 2, with_loss(total), change) == []
    return memory.not_seen["loss"].split("; in step 2 ")[1]


def _only(model: nn.Module) -> Modules:
    modules = Modules()
    modules.modules, modules.roots = list(model.modules()), [model]
    return modules


def masked(x: Any) -> Any:
    return x.index_fill(1, torch.tensor([0]), -INF)


def test_mask_is_not_blamed() -> None:
    text = alarm_text(masked, lambda x: x.softmax(-1), lambda x: {"scores": x * 0 / 0}, lambda x: x)
    assert text == "the first nan is in the output of 2 (Scores)"
    text = alarm_text(masked, lambda x: x.softmax(-1), lambda x: (x + 1) / 0, lambda x: x)
    assert text == "the first inf is in the output of 2 (Scores)"


@pytest.mark.slow
def test_compiled_modules_are_not_hooked() -> None:
    compiled: Any = torch.compile(nn.Linear(2, 2), backend="eager")
    outputs = ModuleOutputs(_only(compiled))
    assert outputs.opaque == "the modules are compiled"
    assert not outputs.sizes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_largest_values_show_what_is_not_finite(dtype: torch.dtype) -> None:
    tensors = [
        torch.tensor([1.0, -3.0]).to(dtype),
        torch.tensor([1.0, NAN, INF]).to(dtype),
        None,
        torch.zeros(0),
        torch.tensor([5]),
        torch.tensor([-INF]),
        torch.ones(2, 2).t(),
    ]
    assert str(largest(tensors).tolist()) == "[3.0, nan, 0.0, 0.0, 0.0, inf, 1.0]"
    assert largest([]).numel() == 0


# -- trainings --


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("training", "start", "words"),
    [
        ("ddp accumulate nan_forward", 3, "it begins in the forward"),
        ("ddp accumulate nan_backward", 3, "the first gradient that is not finite is that of bl"),
    ],
)
def test_training_tells_where_it_begins(
    under_guard: Trainer, training: str, start: int, words: str
) -> None:
    run = under_guard(training, steps=120)  # the shorter a step, the fewer are checked

    (alarm,) = [alarm for alarm in run.alarms if alarm["check"] == "finite"]
    assert words in alarm["text"]
    assert alarm["ranks"] == [1]
    assert alarm["step"] == run.first_check_from(start)
    assert run.told == [("finite", "lost")]
    assert run.logs[0].count("ALARM") == 1
    assert set(run.codes) == {0}
