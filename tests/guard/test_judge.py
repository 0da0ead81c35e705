"""The judge: what it says of right and of wrong steps."""

from __future__ import annotations

import importlib
from unittest import mock

import pytest
import torch

from harness.rank.guard.checks import together
from harness.rank.guard.checks.views import Alarm, Memory
from harness.rank.guard.judge import PATIENCE, judge
from harness.rank.guard.posts import LocalAlarm, Post, packed, unpacked
from tests.guard.made_posts import SIZES, Change, made_posts, sums, with_losses


def judged(changes: dict[int, Change] | None = None, ranks: int = 2) -> list[Alarm]:
    """The alarms of changed posts: the same after the posts were bytes, and without what looks at
    all ranks together."""
    posts = made_posts(changes, ranks)
    alarms = judge(posts, Memory())
    sent = [unpacked(packed(post)) for post in posts]
    assert judge(sent, Memory()) == alarms
    with mock.patch.object(together, "LEAST", ranks + 1):
        assert judge(sent, Memory()) == alarms
    return alarms


def on_all(change: Change, ranks: int = 2) -> dict[int, Change]:
    return dict.fromkeys(range(ranks), change)


def the_alarm(alarms: list[Alarm]) -> Alarm:
    assert len(alarms) == 1, alarms
    return alarms[0]


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_right_step_raises_no_alarm(ranks: int) -> None:
    memory = Memory()

    assert judge(made_posts(ranks=ranks), memory) == []
    assert memory.compared["gradients"] == 2
    assert memory.compared["updates"] == 2 * ranks
    assert memory.compared["replicas"] == (2 if ranks > 1 else 0)
    assert memory.not_seen == {}


# -- replicas --


def moves_weight(by: float) -> Change:
    def change(post: Post) -> None:
        post.tensors["weights"][3] += by
        post.tensors["bits"] = sums(post.tensors["weights"])

    return change


def test_other_weight_on_one_rank_is_no_replica() -> None:
    alarms = judged({2: moves_weight(1e-4)}, ranks=4)

    alarm = the_alarm([alarm for alarm in alarms if alarm.check == "replicas"])
    assert alarm.ranks == [2]
    assert alarm.parameters == ["weight"]
    assert alarm.size == pytest.approx(1e-4, rel=1e-2)


def test_stage_that_another_rank_trains_is_no_replica() -> None:
    """In a pipeline both ranks have the whole model, and each has an optimizer for its stage."""

    def change(post: Post) -> None:
        moves_weight(0.5 * post.rank)(post)
        for number, one in enumerate(post.described):
            one.optimized, one.ranks = number == post.rank, []

    assert [one for one in judged(on_all(change)) if one.check == "replicas"] == []


@pytest.mark.parametrize(("by", "kinds"), [((0.0, 0.5), []), ((0.5, 0.25), ["differ"])])
def test_weights_of_no_optimizer_are_compared_where_they_move(
    by: tuple[float, float], kinds: list[str]
) -> None:
    """ZeRO's optimizer has flat copies. A rank that never moves a weight may have another stage."""

    def change(post: Post) -> None:
        before = torch.linspace(-1, 1, sum(SIZES))
        post.tensors["weights"] = before + by[post.rank]
        post.tensors["bits"] = sums(post.tensors["weights"])
        post.updates, post.used, post.computed = [], [], {}
        for one in post.described:
            one.optimized = False

    assert [one.kind for one in judged(on_all(change)) if one.check == "replicas"] == kinds


def test_flipped_bit_outside_the_sample_is_no_replica() -> None:
    def change(post: Post) -> None:
        post.tensors["bits"][1] += 1

    alarm = the_alarm(judged({1: change}))
    assert (alarm.check, alarm.ranks, alarm.parameters) == ("replicas", [1], ["bias"])
    assert "outside the sample" in alarm.text


def test_weights_that_differ_at_first_are_no_replicas() -> None:
    def change(post: Post) -> None:
        post.tensors["bits"] += post.rank
        post.tensors["first_bits"] += post.rank
        post.tensors["computed"] = post.tensors["used"].clone()
        for one in post.described:
            one.ranks = []  # no wrapper says that they are averaged

    assert judged(on_all(change)) == []


def test_weights_that_were_not_equal_are_replicas_after_a_new_description() -> None:
    """A load puts the same weights on all ranks."""
    memory = Memory()

    def differ(post: Post) -> None:
        post.tensors["first_bits"] += post.rank

    judge(made_posts(on_all(differ)), memory)
    assert judge(made_posts(), memory) == []
    assert memory.compared["replicas"] == 2


# -- gradients --


def uses(factor: float, part: slice = slice(None)) -> Change:
    """The optimizer uses another gradient, and moves the weights by it."""

    def change(post: Post) -> None:
        used = post.tensors["used"]
        used[part] *= factor
        post.tensors["updates"][16:32] = used[:16]
        post.tensors["updates"][36:40] = used[16:]
        before = torch.cat([post.tensors["updates"][:16], post.tensors["updates"][32:36]])
        post.tensors["weights"] = before - 0.1 * used
        post.tensors["bits"] = sums(post.tensors["weights"])

    return change


def test_longer_gradient() -> None:
    alarm = the_alarm(judged(on_all(uses(2.0))))
    assert (alarm.check, alarm.kind, alarm.ranks) == ("gradients", "longer", [0, 1])
    assert alarm.size == pytest.approx(2.0)


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
        post.partial = {"0": 2, "1": 2}
        uses(2.0)(post)

    def alone(post: Post) -> None:
        post.partial = {"0": 2, "1": 2}
        post.tensors["used"] = post.tensors["computed"].clone()

    assert judged(on_all(change)) == []
    kinds = {(alarm.check, alarm.kind) for alarm in judged(on_all(alone))}
    assert ("gradients", "mean") in kinds


def test_parts_of_a_weight_are_compared_apart() -> None:
    def change(post: Post) -> None:
        for described in post.described:
            described.part, described.ranks = f"part {post.rank % 2}", []
        post.tensors["computed"] = post.tensors["used"].clone()
        post.tensors["bits"] += post.rank % 2
        post.tensors["first_bits"] += post.rank % 2

    assert judged(on_all(change, 4), 4) == []


def test_shorter_gradient_is_the_users_scale() -> None:
    assert judged(on_all(uses(0.5))) == []


def test_one_parameter_with_another_gradient() -> None:
    alarm = the_alarm(judged(on_all(uses(1.5, slice(16, 20)))))
    assert (alarm.check, alarm.kind) == ("gradients", "mean")
    assert alarm.parameters == ["bias"]
    assert "alone" not in alarm.text


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
        post.computed = {"0": kind, "1": kind}

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


def test_gradient_that_the_optimizer_has_not() -> None:
    def change(post: Post) -> None:
        post.without_gradient, post.used, post.updates = ["weight", "bias"], [], []
        post.tensors["used"] = torch.zeros(0)

    alarm = the_alarm(judged(on_all(change)))
    assert (alarm.check, alarm.kind, alarm.ranks) == ("gradients", "none", [0, 1])


def test_rank_without_a_gradient_adds_zero_to_the_mean() -> None:
    """It read rows that skip the parameter, as in a mixture of experts."""

    def absent(post: Post) -> None:
        del post.computed["1"]

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
        post.computed = {"0": "float32"}
        post.described[1].left_out = "sharded on dimension 1"

    memory = Memory()
    assert judge(made_posts(on_all(change)), memory) == []
    assert memory.not_seen["gradients"] == (
        "gradients of 1 of 2 parameters are not compared: sharded on dimension 1"
    )


def test_reduction_that_is_no_mean_on_purpose_is_said() -> None:
    def change(post: Post) -> None:
        uses(2.0)(post)
        post.lossy = "PowerSGD"

    memory = Memory()
    assert judge(made_posts(on_all(change)), memory) == []
    assert "PowerSGD" in memory.not_seen["gradients"]


def test_shards_have_parts_of_the_mean() -> None:
    """Each rank updates one half of the weight, as with ZeRO."""

    def shard(post: Post, factor: float = 1.0) -> None:
        begin = 8 * post.rank
        post.described[0].begin, post.described[0].end = begin, begin + 8
        post.used = [(0, begin, begin + 8)]
        post.tensors["used"] = factor * post.tensors["used"][begin : begin + 8]

    assert judged(on_all(shard)) == []
    alarm = the_alarm(judged({0: shard, 1: lambda post: shard(post, 3.0)}))
    assert (alarm.kind, alarm.ranks) == ("longer", [1])


@pytest.mark.parametrize(("is_whole", "checks"), [(False, PATIENCE), (True, PATIENCE // 2)])
def test_cleared_gradients_are_a_fault_if_it_goes_on(is_whole: bool, checks: int) -> None:
    def change(post: Post) -> None:
        uses(1.5, slice(0, 4))(post)
        post.dropped, post.is_whole = 3, is_whole

    memory, alarms = Memory(), []
    for _ in range(checks):
        alarms.append(judge(made_posts(on_all(change)), memory))
    assert [len(found) for found in alarms] == [0] * (checks - 1) + [1]


def test_parts_of_a_weight_have_gradients_of_their_own() -> None:
    """Each rank of tensor parallelism has another part, and uses what it computed."""

    def change(post: Post) -> None:
        post.tensors["used"] = post.tensors["computed"].clone()
        for one in post.described:
            one.part, one.ranks = f"part of rank {post.rank}", []
            one.copy += one.part

    assert [one for one in judged(on_all(change)) if one.check == "gradients"] == []


# -- updates --


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


def test_update_of_another_optimizer_is_only_that_it_moves() -> None:
    def still(post: Post) -> None:
        post.kind = "Lion"
        post.check = 10
        post.tensors["weights"][16:] = post.tensors["updates"][32:36]
        post.tensors["bits"] = sums(post.tensors["weights"])

    def moved(post: Post) -> None:
        post.kind = "Lion"

    assert judged(on_all(moved)) == []
    assert the_alarm(judged(on_all(still))).parameters == ["bias"]


def test_fused_optimizer_that_divides_itself_is_said() -> None:
    def change(post: Post) -> None:
        post.fused_scale = True

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
        post.check, post.kind, values = check, "Adam", []
        pieces = post.tensors["updates"].split([16, 16, 4, 4])
        for number, update in enumerate(post.updates):
            moments = torch.full((2 * update.count,), moment)
            values += [*pieces[2 * number : 2 * number + 2], moments]
            update.state, update.step = ["exp_avg", "exp_avg_sq"], step
            update.group = {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
        post.tensors["updates"] = torch.cat(values)

    alarms = judged(on_all(change))
    assert [one.kind for one in alarms if one.kind == "counted"] == kinds


def test_weights_in_no_optimizer_that_never_move() -> None:
    def change(post: Post) -> None:
        post.check, post.foreign, post.unheld = 3, 2, ["weight", "bias"]
        post.tensors["bits"] = post.tensors["first_bits"].clone()
        for one in post.described:
            one.optimized = False
        post.computed, post.used, post.updates = {}, [], []

    alarm = the_alarm(judged(on_all(change)))
    assert (alarm.check, alarm.kind) == ("updates", "unheld")
    assert alarm.text.startswith("weight and 1 more parameter get gradients but never move")


def is_left(share: float, is_noted: bool = True) -> Change:
    """The gradient of the step before is there when the step begins, and a share of it in the
    gradient that the optimizer uses."""

    def change(post: Post) -> None:
        left = torch.linspace(-2, 1, sum(SIZES))
        post.tensors["left"], post.stale = left, is_noted
        post.tensors["used"] += share * left
        post.updates = []

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


# -- accumulation --


@pytest.mark.parametrize(
    ("weights", "kinds"),
    [
        ((1.0,), []),
        ((0.25,) * 4, []),
        ((1.0,) * 4, ["weight"]),
        ((1 / 16,) * 4, ["weight"]),
        ((0.125,) * 4, ["weight"]),
        ((0.25 * 1.005,) * 4, []),
        ((0.25 * 0.97,) * 4, ["tokens"]),
        ((0.25 * 0.3,) * 4, []),  # the user's own weight of the loss
    ],
)
def test_losses_count_once(weights: tuple[float, ...], kinds: list[str]) -> None:
    alarms = judged(on_all(with_losses(*weights)))
    assert [(alarm.check, alarm.kind) for alarm in alarms] == [
        ("accumulation", kind) for kind in kinds
    ]


@pytest.mark.parametrize(
    ("trainer", "count", "kinds"),
    [
        (True, 12.0, ["tokens"]),  # the Trainer counted 16 tokens, and the loss is a sum of 12
        (False, 12.0, []),  # a loop may divide by what it wants
        (True, 2048.0, []),  # as many sequences: a user's own loss
        (True, 16.0, []),
        (True, 7.0, ["weight"]),  # and it divides once more by the two micro-batches
        (False, 7.0, []),
    ],
)
def test_trainer_divides_a_sum_by_its_tokens(trainer: bool, count: float, kinds: list[str]) -> None:
    posts = made_posts(dict.fromkeys(range(2), with_losses(1 / 16, count=count)))
    posts[0].facts = {"releases": {}, "settings": {"trainer": trainer}}

    alarms = judge(posts, Memory())
    assert [alarm.kind for alarm in alarms] == kinds


def test_ranks_of_a_split_model_have_one_loss() -> None:
    def change(post: Post) -> None:
        with_losses(0.5)(post)
        post.described[0].left_out = "DTensors of tensor parallelism"

    assert "accumulation" not in {alarm.check for alarm in judged(on_all(change))}


def test_losses_of_ranks_with_other_lengths_are_averaged() -> None:
    assert judged({0: with_losses(0.5), 1: with_losses(1.5)}) == []


def test_loss_with_other_terms_is_not_judged() -> None:
    def change(post: Post) -> None:
        post.tensors["losses"] = torch.tensor([9.0, 2.0, 4.0, 1.0, 1.0])

    assert judged(on_all(change)) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_loss_that_is_not_finite_is_not_judged(value: float) -> None:
    def change(post: Post) -> None:
        post.tensors["losses"] = torch.tensor([value, value, 4.0, 1.0, 1.0])

    assert judged(on_all(change)) == []


def test_losses_are_not_judged_without_those_of_one_rank() -> None:
    assert judged({0: with_losses(1.0, 1.0)}) == []


# -- samples --


def reads(*rows: int) -> Change:
    def change(post: Post) -> None:
        post.rows = [(0, list(rows))]

    return change


def test_same_rows_on_two_ranks() -> None:
    changes = {0: reads(1, 2, 3, 4), 1: reads(5, 6, 7, 8), 2: reads(1, 2, 3, 4)}
    alarm = the_alarm(judged(changes, ranks=3))
    assert (alarm.check, alarm.kind, alarm.ranks) == ("samples", "shared", [0, 2])
    assert alarm.size == 4


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((1, 2, 3, 4), (5, 6, 7, 8)),
        ((1, 2, 3, 4), (4, 5, 6, 7)),  # a row that fills the last batch
        ((0, 0, 0, 0), (0, 0, 0, 0)),  # padding
        ((), ()),
    ],
)
def test_rows_that_are_not_shared(first: tuple[int, ...], second: tuple[int, ...]) -> None:
    assert judged({0: reads(*first), 1: reads(*second)}) == []


def test_same_rows_are_right_if_no_wrapper_averages_over_all_ranks() -> None:
    """Tensor parallelism: all ranks of a group read the same rows."""

    def change(post: Post) -> None:
        reads(1, 2, 3, 4)(post)
        for one in post.described:
            one.ranks = []

    assert judged(on_all(change)) == []


# -- alarms --


def test_alarms_of_ranks_are_one() -> None:
    def change(post: Post) -> None:
        post.alarms = [LocalAlarm("schedule", "resume", "the rate was lost", 0.1 * post.rank)]

    alarm = the_alarm(judged(on_all(change, 3), ranks=3))
    assert alarm.ranks == [0, 1, 2]
    assert alarm.size == pytest.approx(0.2)


# -- a part of the parameters --


def looks_at(*numbers: int) -> Change:
    """The check looks at these parameters alone."""

    def change(post: Post) -> None:
        post.numbers = list(numbers)
        values = {n: post.tensors[n].split(SIZES) for n in ("computed", "weights")}
        for name, parts in values.items():
            post.tensors[name] = torch.cat([parts[number] for number in numbers])
        post.tensors["bits"] = post.tensors["bits"][list(numbers)]
        post.computed = {str(number): post.computed[str(number)] for number in numbers}
        post.used = [place for place in post.used if place[0] in numbers]
        post.tensors["used"] = post.tensors["used"].split(SIZES)[numbers[0]]
        start = 2 * sum(SIZES[: numbers[0]])
        post.updates = [update for update in post.updates if update.parameter in numbers]
        post.tensors["updates"] = post.tensors["updates"][start : start + 2 * SIZES[numbers[0]]]

    return change


@pytest.mark.parametrize("number", [0, 1])
def test_part_of_the_parameters_is_judged(number: int) -> None:
    memory = Memory()

    assert judge(made_posts(on_all(looks_at(number))), memory) == []
    assert memory.compared == {"replicas": 1, "gradients": 1, "updates": 2, "accumulation": 1}


def test_fault_in_a_part_of_the_parameters() -> None:
    def change(post: Post) -> None:
        uses(1.5, slice(16, 20))(post)
        looks_at(1)(post)

    def flipped(post: Post) -> None:
        looks_at(1)(post)
        post.tensors["bits"][0] += 1

    alarm = the_alarm(judged(on_all(change)))
    assert (alarm.check, alarm.kind) == ("gradients", "longer")
    alarm = the_alarm(judged({0: looks_at(1), 1: flipped}))
    assert (alarm.check, alarm.ranks, alarm.parameters) == ("replicas", [1], ["bias"])


# -- many ranks --


@pytest.mark.parametrize("ranks", [2, 100])
def test_right_step_of_many_ranks_needs_no_look_at_each_of_them(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for check, function in (
        ("gradients", "_pairs"),
        ("replicas", "_copies"),
        ("updates", "_updates"),
    ):
        monkeypatch.delattr(importlib.import_module(f"harness.rank.guard.checks.{check}"), function)
    memory = Memory()

    assert judge([unpacked(packed(post)) for post in made_posts(ranks=ranks)], memory) == []
    assert memory.compared == {
        "replicas": 2,
        "gradients": 2,
        "updates": 2 * ranks,
        "accumulation": 1,
    }


def test_fault_of_one_among_many_ranks() -> None:
    alarms = judged({17: uses(1.5, slice(16, 20))}, ranks=20)
    assert [(one.check, one.kind, one.ranks) for one in alarms] == [
        ("replicas", "differ", [17]),
        ("gradients", "mean", [17]),
    ]
