"""The judge: what it says of gradients."""

from __future__ import annotations

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import PATIENCE, judge
from harness.rank.guard.posting.posts import Post
from tests.guard.judging import judged, on_all, the_alarm, uses
from tests.guard.made_posts import SIZES, made_posts, with_losses


def test_sum_of_gradients_makes_up_for_a_loss_that_is_divided_by_the_ranks() -> None:
    def change(post: Post) -> None:
        uses(2.0)(post)
        with_losses(0.5)(post)

    assert judged(on_all(change)) == []


def test_sum_of_gradients_is_no_fault_if_the_loss_is_not_seen() -> None:
    def change(post: Post) -> None:
        uses(2.0)(post)
        del post.tensors["losses"]

    memory = Memory()
    assert judge(made_posts(on_all(change)), memory) == []
    assert "summed" in memory.not_seen["scale"]


def test_gradients_of_tensor_parallelism_are_added() -> None:
    def change(post: Post) -> None:
        """The whole gradient is the sum of what two ranks computed, and is never divided."""
        post.gradients.partial = {"0": 2, "1": 2}
        uses(2.0)(post)

    def alone(post: Post) -> None:
        post.gradients.partial = {"0": 2, "1": 2}
        post.tensors["used"] = post.tensors["computed"].clone()

    assert judged(on_all(change)) == []
    kinds = {(alarm.check, alarm.kind) for alarm in judged(on_all(alone))}
    assert ("gradients", "mean") in kinds


def test_parts_of_a_weight_are_compared_apart() -> None:
    def change(post: Post) -> None:
        for described in post.parameters.described:
            described.part, described.ranks = f"part {post.rank % 2}", []
        post.tensors["computed"] = post.tensors["used"].clone()
        post.tensors["bits"] += post.rank % 2
        post.tensors["first_bits"] += post.rank % 2

    assert judged(on_all(change, 4), 4) == []


def test_shorter_gradient_is_the_users_scale() -> None:
    assert judged(on_all(uses(0.5))) == []


def test_gradient_of_this_rank_alone() -> None:
    def change(post: Post) -> None:
        post.tensors["used"] = post.tensors["computed"].clone()
        uses(1.0)(post)

    alarms = judged(on_all(change))
    assert {(alarm.check, alarm.kind) for alarm in alarms} == {
        ("gradients", "mean"),
        ("replicas", "differ"),
    }
    assert "that of one rank alone" in next(one.text for one in alarms if one.kind == "mean")


def test_gradient_of_zero() -> None:
    alarms = judged(on_all(uses(0.0)))
    assert [(alarm.check, alarm.kind) for alarm in alarms] == [("gradients", "mean")]
    assert "zero" in alarms[0].text


@pytest.mark.parametrize(("factor", "kinds"), [(1.001, []), (1.02, ["longer"])])
def test_gradient_within_tolerance(factor: float, kinds: list[str]) -> None:
    assert [alarm.kind for alarm in judged(on_all(uses(factor)))] == kinds


@pytest.mark.parametrize(("kind", "kinds"), [("bfloat16", []), ("float32", ["longer"])])
def test_tolerance_is_wider_in_16_bits(kind: str, kinds: list[str]) -> None:
    def change(post: Post) -> None:
        uses(1.03)(post)
        post.gradients.computed = {"0": kind, "1": kind}

    assert [alarm.kind for alarm in judged(on_all(change))] == kinds


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("tensor", ["computed", "used"])
def test_gradient_that_is_not_finite_is_not_compared(tensor: str, value: float) -> None:
    def change(post: Post) -> None:
        post.tensors[tensor][2] = value

    assert judged(on_all(change)) == []


def test_gradients_beside_one_that_is_not_finite_are_not_compared() -> None:
    """DeepSpeed's loss scaler skips the step: its next step uses the gradients of another pass."""

    def change(post: Post) -> None:
        post.tensors["computed"][2] = float("inf")
        post.tensors["used"] *= torch.linspace(1, 2, sum(SIZES))

    assert judged(on_all(change)) == []


def test_rank_without_a_gradient_adds_zero_to_the_mean() -> None:
    """It read rows that skip the parameter, as in a mixture of experts."""

    def absent(post: Post) -> None:
        del post.gradients.computed["1"]

    def halved(post: Post) -> None:
        mean = made_posts()[0].tensors["computed"][16:] / 2
        post.tensors["used"][16:] = mean
        uses(1.0)(post)

    def both(post: Post) -> None:
        absent(post)
        halved(post)

    assert judged({0: halved, 1: both}) == []


def test_mean_of_some_ranks_is_not_judged_without_the_others() -> None:
    posts = made_posts(ranks=3)
    memory = Memory()

    assert [alarm.check for alarm in judge(posts[:2], memory)] == []
    assert memory.compared["gradients"] == 0
    assert "2 of 2 parameters" in memory.not_seen["gradients"]


def test_parameter_that_is_left_out_is_said_with_the_reason() -> None:
    def change(post: Post) -> None:
        post.gradients.computed = {"0": "float32"}
        post.parameters.described[1].left_out = "sharded on dimension 1"

    memory = Memory()
    assert judge(made_posts(on_all(change)), memory) == []
    assert memory.not_seen["gradients"] == (
        "gradients of 1 of 2 parameters are not compared: sharded on dimension 1"
    )


def test_reduction_that_is_no_mean_on_purpose_is_said() -> None:
    def change(post: Post) -> None:
        uses(2.0)(post)
        post.gradients.lossy = "PowerSGD"

    memory = Memory()
    assert judge(made_posts(on_all(change)), memory) == []
    assert "PowerSGD" in memory.not_seen["gradients"]


def test_shards_have_parts_of_the_mean() -> None:
    """Each rank updates one half of the weight, as with ZeRO."""

    def shard(post: Post, factor: float = 1.0) -> None:
        begin = 8 * post.rank
        post.parameters.described[0].begin, post.parameters.described[0].end = begin, begin + 8
        post.tensors["places"] = torch.tensor([0, begin, begin + 8])
        post.tensors["used"] = factor * post.tensors["used"][begin : begin + 8]

    assert judged(on_all(shard)) == []
    alarm = the_alarm(judged({0: shard, 1: lambda post: shard(post, 3.0)}))
    assert (alarm.kind, alarm.ranks) == ("longer", [1])


@pytest.mark.parametrize(("is_whole", "checks"), [(False, PATIENCE), (True, PATIENCE // 2)])
def test_cleared_gradients_are_a_fault_if_it_goes_on(is_whole: bool, checks: int) -> None:
    def judged_in_a_row(*weights: float) -> list[int]:
        def change(post: Post) -> None:
            uses(1.5, slice(0, 4))(post)
            with_losses(*weights)(post)
            post.gradients.dropped, post.losses.is_whole = 3, is_whole

        memory = Memory()
        return [len(judge(made_posts(on_all(change)), memory)) for _ in range(checks)]

    assert judged_in_a_row(0.5, 0.5) == [0] * (checks - 1) + [1]
    assert judged_in_a_row(1.0, 1.0) == [0] * checks  # both are of one batch, as with SAM
