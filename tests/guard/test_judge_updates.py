"""The judge: what it says of updates."""

from __future__ import annotations

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Post
from tests.guard.judging import judged, on_all, the_alarm
from tests.guard.made_posts import SIZES, Change, made_posts, sums


def test_weight_that_moves_too_far() -> None:
    def change(post: Post) -> None:
        before = torch.cat([post.tensors["updates"][:16], post.tensors["updates"][32:36]])
        post.tensors["weights"] = before + 2 * (post.tensors["weights"] - before)
        post.tensors["bits"] = sums(post.tensors["weights"])

    alarm = the_alarm(judged(on_all(change)))
    assert (alarm.check, alarm.kind, alarm.ranks) == ("updates", "formula", [0, 1])
    assert "moved 2 times as far as the formula of SGD" in alarm.text


def test_parameter_that_does_not_move() -> None:
    def change(post: Post) -> None:
        post.tensors["weights"][16:] = post.tensors["updates"][32:36]
        post.tensors["bits"] = sums(post.tensors["weights"])

    alarm = the_alarm(judged(on_all(change)))
    assert alarm.parameters == ["bias"]
    assert "bias was not moved" in alarm.text


def test_step_that_moves_nothing_was_skipped() -> None:
    def change(post: Post) -> None:
        post.tensors["weights"][:16] = post.tensors["updates"][:16]
        post.tensors["weights"][16:] = post.tensors["updates"][32:36]
        post.tensors["bits"] = sums(post.tensors["weights"])

    assert judged(on_all(change)) == []


def test_fused_optimizer_that_divides_itself_is_said() -> None:
    def change(post: Post) -> None:
        post.loop.fused_scale = True

    memory = Memory()
    assert judge(made_posts(on_all(change)), memory) == []
    assert "updates" in memory.not_seen


@pytest.mark.parametrize(
    ("step", "moment", "check", "kinds"),
    [
        (1.0, 0.0, 1, ["counted"]),
        (0.0, 0.0, 1, []),
        (9.0, 0.1, 1, []),  # a training that was resumed
        (9.0, 0.0, 2, []),  # rows of an embedding that were not seen before
    ],
)
def test_adam_counts_no_step_before_its_first_gradient(
    step: float, moment: float, check: int, kinds: list[str]
) -> None:
    def change(post: Post) -> None:
        post.check, post.parameters.kind, values = check, "Adam", []
        pieces = post.tensors["updates"].split([16, 16, 4, 4])
        for number, update in enumerate(post.parameters.updates):
            moments = torch.full((2 * update.count,), moment)
            values += [*pieces[2 * number : 2 * number + 2], moments]
            update.state, update.step = ["exp_avg", "exp_avg_sq"], step
            update.group = {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
        post.tensors["updates"] = torch.cat(values)

    alarms = judged(on_all(change))
    assert [one.kind for one in alarms if one.kind == "counted"] == kinds


def test_weights_that_the_loop_gave_no_optimizer_are_said() -> None:
    """Some loops freeze a part of a model so; others forget it."""

    def change(post: Post) -> None:
        post.check, post.gradients.unheld = 3, ["bias"]
        post.tensors["bits"] = post.tensors["first_bits"].clone()
        post.parameters.described[1].optimized = False
        post.parameters.updates = []
        del post.tensors["places"]
        if is_old:
            post.gradients.computed = {}

    is_old, memory = True, Memory()
    judge(made_posts(on_all(change)), memory)
    assert "unheld" not in memory.not_seen
    is_old = False
    judge(made_posts(on_all(change)), memory)
    assert memory.not_seen["unheld"] == (
        "whether it is meant that bias gets gradients and no optimizer has it"
    )


def is_left(share: float, is_noted: bool = True) -> Change:
    """The gradient of the step before is there when the step begins, and a share of it in the
    gradient that the optimizer uses."""

    def change(post: Post) -> None:
        leftover = torch.linspace(-2, 1, sum(SIZES))
        post.tensors["left"], post.gradients.stale = leftover, is_noted
        post.tensors["used"] += share * leftover
        post.parameters.updates = []

    return change


@pytest.mark.parametrize(("share", "kind"), [(0.0, None), (1.0, "stale"), (0.7, "mean")])
def test_gradient_of_the_step_before_is_told_if_the_rest_is_right(
    share: float, kind: str | None
) -> None:
    alarms = judged(on_all(is_left(share)))
    assert [alarm.kind for alarm in alarms] == ([kind] if kind else [])
    if kind == "stale":
        assert "zero_grad" in alarms[0].text
        assert alarms[0].parameters == ["weight", "bias"]


def test_gradient_that_a_loop_writes_before_a_backward_is_not_of_the_step_before() -> None:
    alarm = the_alarm(judged(on_all(is_left(1.0, is_noted=False))))
    assert alarm.kind == "mean"
