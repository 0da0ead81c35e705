"""The judge: what it says of replicas, rows, parts of the parameters and many ranks."""

from __future__ import annotations

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Post
from tests.guard.judging import judged, moves_weight, on_all, the_alarm, uses
from tests.guard.made_posts import SIZES, Change, made_posts, sums


def test_stage_that_another_rank_trains_is_no_replica() -> None:
    """In a pipeline both ranks have the whole model, and each has an optimizer for its stage."""

    def change(post: Post) -> None:
        moves_weight(0.5 * post.rank)(post)
        for number, parameter in enumerate(post.parameters.described):
            parameter.optimized, parameter.ranks = number == post.rank, []

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
        post.parameters.updates, post.gradients.computed = [], {}
        del post.tensors["places"]
        for parameter in post.parameters.described:
            parameter.optimized = False

    assert [one.kind for one in judged(on_all(change)) if one.check == "replicas"] == kinds


def test_flipped_bit_outside_the_sample_is_no_replica() -> None:
    def change(post: Post) -> None:
        post.tensors["bits"][1] += 1

    alarm = the_alarm(judged({1: change}))
    assert (alarm.check, alarm.ranks, alarm.parameters) == ("replicas", [1], ["bias"])
    assert "outside the sample" in alarm.text


def test_copies_that_are_farthest_apart_are_named_first() -> None:
    def change(post: Post) -> None:
        post.tensors["weights"][0] += 0.125
        post.tensors["weights"][-1] += 0.5  # of the bias
        post.tensors["bits"] = sums(post.tensors["weights"])

    alarm = next(one for one in judged({1: change}) if one.check == "replicas")
    assert alarm.text.startswith("the copies of bias and 1 more parameter are not equal: by up to")
    assert alarm.parameters == ["bias", "weight"]
    assert alarm.size == pytest.approx(0.5)


def test_weights_that_differ_at_first_are_no_replicas() -> None:
    def change(post: Post) -> None:
        post.tensors["bits"] += post.rank
        post.tensors["first_bits"] += post.rank
        post.tensors["computed"] = post.tensors["used"].clone()
        for parameter in post.parameters.described:
            parameter.ranks = []  # no wrapper says that they are averaged

    assert judged(on_all(change)) == []


def test_weights_that_were_not_equal_are_replicas_after_a_new_description() -> None:
    """A load puts the same weights on all ranks."""
    memory = Memory()

    def differ(post: Post) -> None:
        post.tensors["first_bits"] += post.rank

    judge(made_posts(on_all(differ)), memory)
    assert judge(made_posts(), memory) == []
    assert memory.compared["replicas"] == 2


def reads(*rows: int) -> Change:
    def change(post: Post) -> None:
        post.data.rows = [(0, list(rows))]

    return change


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
        for parameter in post.parameters.described:
            parameter.ranks = []

    assert judged(on_all(change)) == []


def looks_at(*numbers: int) -> Change:
    """The check looks at these parameters alone."""

    def change(post: Post) -> None:
        post.parameters.numbers = list(numbers)
        values = {n: post.tensors[n].split(SIZES) for n in ("computed", "weights")}
        for name, parts in values.items():
            post.tensors[name] = torch.cat([parts[number] for number in numbers])
        post.tensors["bits"] = post.tensors["bits"][list(numbers)]
        post.gradients.computed = {
            str(number): post.gradients.computed[str(number)] for number in numbers
        }
        places = post.tensors["places"].reshape(-1, 3).tolist()
        looked_at = [place for place in places if place[0] in numbers]
        post.tensors["places"] = torch.tensor(looked_at).flatten()
        post.tensors["used"] = post.tensors["used"].split(SIZES)[numbers[0]]
        start = 2 * sum(SIZES[: numbers[0]])
        post.parameters.updates = [
            update for update in post.parameters.updates if update.parameter in numbers
        ]
        post.tensors["updates"] = post.tensors["updates"][start : start + 2 * SIZES[numbers[0]]]

    return change


@pytest.mark.parametrize("number", [0, 1])
def test_part_of_the_parameters_is_judged(number: int) -> None:
    memory = Memory()

    assert judge(made_posts(on_all(looks_at(number))), memory) == []
    compared = {"replicas": 1, "gradients": 1, "updates": 2, "accumulation": 1}
    assert memory.compared.items() >= compared.items()


def test_fault_of_one_among_many_ranks() -> None:
    alarms = judged({17: uses(1.5, slice(16, 20))}, ranks=20)
    assert [(one.check, one.kind, one.ranks) for one in alarms] == [
        ("replicas", "differ", [17]),
        ("gradients", "mean", [17]),
    ]
