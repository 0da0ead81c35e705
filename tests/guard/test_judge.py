"""The judge: what it says of replicas, gradients, updates, rows and parts of the parameters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import PATIENCE, judge
from harness.rank.guard.posting.posts import LAST, Post
from tests.guard.judging import (
    SIZES,
    Change,
    before,
    described,
    judged,
    kinds,
    made_posts,
    moves_weight,
    no_wrapper,
    on_all,
    sums,
    uses,
    uses_its_own,
    with_losses,
)


def write_weights(post: Post, values: torch.Tensor) -> None:
    post.tensors["weights"] = values
    post.tensors["bits"] = sums(values)


# -- what is told, and what is not --


def of_another_stage(post: Post) -> None:
    """In a pipeline both ranks have the whole model, and each has an optimizer for its stage."""
    moves_weight(0.5 * post.rank)(post)
    no_wrapper(post)
    for number, parameter in enumerate(post.parameters.described):
        parameter.optimized = number == post.rank
    del post.tensors["places"]
    post.gradients.computed = {}


def flat_copies_move(*by: float) -> Change:
    """ZeRO's optimizer has flat copies. A rank that never moves a weight may have another stage."""

    def change(post: Post) -> None:
        write_weights(post, torch.linspace(-1, 1, sum(SIZES)) + by[post.rank])
        post.parameters.updates, post.gradients.computed = [], {}
        del post.tensors["places"]
        for parameter in post.parameters.described:
            parameter.optimized = False

    return change


def differ_at_first(post: Post) -> None:
    post.tensors["bits"] += post.rank
    post.tensors["first_bits"] += post.rank
    post.tensors["computed"] = post.tensors["used"].clone()
    no_wrapper(post)


def reads(*rows: int) -> Change:
    def change(post: Post) -> None:
        post.data.rows = [(0, list(rows))]

    return change


def same_rows_without_a_wrapper(post: Post) -> None:
    """Tensor parallelism: all ranks of a group read the same rows."""
    reads(1, 2, 3, 4)(post)
    no_wrapper(post)


def in_16_bits(factor: float, kind: str) -> Change:
    def change(post: Post) -> None:
        uses(factor)(post)
        post.gradients.computed = {"0": kind, "1": kind}

    return change


def not_finite(tensor: str, value: float) -> Change:
    def change(post: Post) -> None:
        post.tensors[tensor][2] = value

    return change


def beside_one_that_is_not_finite(post: Post) -> None:
    """DeepSpeed's loss scaler skips the step: its next step uses the gradients of another pass."""
    post.tensors["computed"][2] = float("inf")
    post.tensors["used"] *= torch.linspace(1, 2, sum(SIZES))


def moves_nothing(post: Post) -> None:
    write_weights(post, before(post))


def left_over(share: float, is_noted: bool = True) -> Change:
    """The gradient of the step before is there when the step begins, and a share of it in the
    gradient that the optimizer uses."""

    def change(post: Post) -> None:
        leftover = torch.linspace(-2, 1, sum(SIZES))
        post.tensors["left"], post.gradients.stale = leftover, is_noted
        post.tensors["used"] += share * leftover
        post.parameters.updates = []

    return change


def adam(step: float, moment: float, check: int = 1) -> Change:
    """Adam has counted steps, and has moments, when the first one begins."""

    def change(post: Post) -> None:
        post.check, post.parameters.kind, values = check, "Adam", []
        pieces = post.tensors["updates"].split([16, 16, 4, 4])
        for number, update in enumerate(post.parameters.updates):
            moments = torch.full((2 * update.count,), moment)
            values += [*pieces[2 * number : 2 * number + 2], moments]
            update.state, update.step = ["exp_avg", "exp_avg_sq"], step
            update.group = {"lr": 0.1, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}
        post.tensors["updates"] = torch.cat(values)

    return change


def settings(**values: Any) -> Change:
    def change(post: Post) -> None:
        post.parameters.kind = "Prodigy"
        for update in post.parameters.updates:
            update.group = {**update.group, **values}

    return change


def another_rate(post: Post) -> None:
    updates = [replace(update, rate=0.2) for update in post.parameters.updates]
    post.parameters.updates = updates


def own_settings_without_a_wrapper(post: Post) -> None:
    settings(d=1e-6 * (1 + post.rank))(post)
    no_wrapper(post)


def last_check(is_frozen: bool) -> Change:
    """Rank 0 writes an average into all weights that are trained."""

    def change(post: Post) -> None:
        post.check = LAST
        post.parameters.described[0].optimized = not is_frozen
        if is_frozen:
            post.tensors["bits"][0] = post.tensors["first_bits"][0]
        post.tensors["bits"][1] += post.rank == 0

    return change


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("changes", "check", "expected"),
    [
        (of_another_stage, "replicas", []),
        (flat_copies_move(0.0, 0.5), "replicas", []),
        (flat_copies_move(0.5, 0.25), "replicas", ["differ"]),
        (differ_at_first, "", []),
        (last_check(is_frozen=False), "", ["differ"]),
        (last_check(is_frozen=True), "", []),
        ({0: reads(1, 2, 3, 4), 1: reads(5, 6, 7, 8)}, "", []),
        ({0: reads(1, 2, 3, 4), 1: reads(4, 5, 6, 7)}, "", []),  # a row fills the last batch
        (reads(0, 0, 0, 0), "", []),  # padding
        (reads(), "", []),
        (same_rows_without_a_wrapper, "", []),
        (uses(0.5), "", []),  # the user's scale
        (uses(1.001), "", []),
        (uses(1.02), "", ["longer"]),
        (uses(0.0), "", ["mean"]),
        (uses_its_own, "gradients", ["mean"]),
        (in_16_bits(1.03, "bfloat16"), "", []),
        (in_16_bits(1.03, "float32"), "", ["longer"]),
        (not_finite("computed", NAN), "", []),
        (not_finite("used", INF), "", []),
        (beside_one_that_is_not_finite, "", []),
        (moves_nothing, "", []),  # the step was skipped
        (left_over(0.0), "", []),
        (left_over(1.0), "", ["stale"]),
        (left_over(0.7), "", ["mean"]),
        (left_over(1.0, is_noted=False), "", ["mean"]),  # the loop wrote it before a backward
        (adam(1.0, 0.0), "updates", ["counted", "formula"]),
        (adam(0.0, 0.0), "updates", ["formula"]),
        (adam(9.0, 0.1), "updates", ["formula"]),  # a training that was resumed
        (adam(9.0, 0.0, check=2), "updates", ["formula"]),  # rows that were not seen before
        ({0: settings(d=1e-6), 1: settings(d=2e-6)}, "", ["settings"]),
        ({0: settings(weight_decay=0.1), 1: settings(weight_decay=0.0)}, "", ["settings"]),
        ({0: settings(d=1e-6), 1: settings(d=1e-6 * (1 + 1e-9))}, "", []),
        ({0: settings(seed=0), 1: settings(seed=1)}, "", []),
        ({0: settings(d=1e-6), 1: settings()}, "", []),
        (own_settings_without_a_wrapper, "updates", []),
    ],
)  # fmt: skip
def test_alarms_of_a_step(changes: Any, check: str, expected: list[str]) -> None:
    assert kinds(judged(changes), check) == expected


# -- what an alarm says --


def flipped_outside_the_sample(post: Post) -> None:
    post.tensors["bits"][1] += 1


def moves_twice(post: Post) -> None:
    write_weights(post, before(post) + 2 * (post.tensors["weights"] - before(post)))


def moves_the_weight_alone(post: Post) -> None:
    write_weights(post, torch.cat([post.tensors["weights"][:16], before(post)[16:]]))


def moves_apart(post: Post) -> None:
    far = torch.zeros(sum(SIZES))
    far[0], far[-1] = 0.125, 0.5  # of the bias
    write_weights(post, post.tensors["weights"] + far)


BOTH = ["weight", "bias"]


@pytest.mark.parametrize(
    ("changes", "kind", "ranks", "parameters", "words"),
    [
        ({1: flipped_outside_the_sample}, "differ", [1], ["bias"], "outside the sample"),
        (
            {1: moves_apart},
            "differ",
            [1],
            BOTH[::-1],  # that which is farthest apart first
            "the copies of bias and 1 more parameter are not equal: by up to",
        ),
        (uses_its_own, "mean", [0, 1], BOTH, "that of one rank alone"),
        (uses(0.0), "mean", [0, 1], ["weight"], "zero"),
        (left_over(1.0), "stale", [0, 1], BOTH, "zero_grad"),
        (moves_twice, "formula", [0, 1], BOTH, "moved 2 times as far as the formula of SGD"),
        (moves_the_weight_alone, "formula", [0, 1], ["bias"], "bias was not moved"),
        ({1: another_rate}, "settings", [1], ["weight"], ""),
    ],
)
def test_an_alarm_names_ranks_and_parameters(
    changes: Any, kind: str, ranks: list[int], parameters: list[str], words: str
) -> None:
    (alarm,) = [alarm for alarm in judged(changes) if alarm.kind == kind]
    assert (alarm.ranks, alarm.parameters) == (ranks, parameters)
    assert words in alarm.text


def test_fault_of_one_among_many_ranks() -> None:
    alarms = judged({17: uses(1.5, slice(16, 20))}, ranks=20)
    assert [(alarm.kind, alarm.ranks) for alarm in alarms] == [("differ", [17]), ("mean", [17])]


# -- what is not seen --


def summed_without_losses(post: Post) -> None:
    uses(2.0)(post)
    del post.tensors["losses"]


def sharded_otherwise(post: Post) -> None:
    post.gradients.computed = {"0": "float32"}
    post.parameters.described[1].left_out = "sharded on dimension 1"


def compressed(post: Post) -> None:
    uses(2.0)(post)
    post.gradients.lossy = "PowerSGD"


def divides_itself(post: Post) -> None:
    post.loop.fused_scale = True


def unheld(post: Post) -> None:
    """Some loops freeze a part of a model so; others forget it."""
    post.check, post.gradients.unheld = 3, ["bias"]
    post.tensors["bits"] = post.tensors["first_bits"].clone()
    post.parameters.described[1].optimized = False
    post.parameters.updates = []
    del post.tensors["places"]


def unheld_before(post: Post) -> None:
    unheld(post)
    post.gradients.computed = {}


@pytest.mark.parametrize(
    ("change", "name", "words"),
    [
        (summed_without_losses, "scale", "summed"),
        (
            sharded_otherwise,
            "gradients",
            "gradients of 1 of 2 parameters are not compared: sharded on dimension 1",
        ),
        (compressed, "gradients", "PowerSGD"),
        (divides_itself, "updates", ""),
        (unheld, "unheld", "whether it is meant that bias gets gradients and no optimizer has it"),
        (unheld_before, "unheld", None),
    ],
)
def test_what_is_not_seen_is_said(change: Change, name: str, words: str | None) -> None:
    memory = Memory()
    assert judged(change, memory) == []
    assert name in memory.not_seen if words is not None else name not in memory.not_seen
    assert (words or "") in memory.not_seen.get(name, "")


def test_mean_of_some_ranks_is_not_judged_without_the_others() -> None:
    posts = made_posts(ranks=3)
    memory = Memory()

    assert judge(posts[:2], memory) == []
    assert memory.compared["gradients"] == 0
    assert "2 of 2 parameters" in memory.not_seen["gradients"]


def test_weights_that_were_not_equal_are_replicas_after_a_new_description() -> None:
    """A load puts the same weights on all ranks."""
    memory = Memory()

    def differ(post: Post) -> None:
        post.tensors["first_bits"] += post.rank

    judged(differ, memory)
    assert judged({}, memory) == []
    assert memory.compared["replicas"] == 2


def looks_at(number: int) -> Change:
    """The check looks at this parameter alone."""

    def change(post: Post) -> None:
        post.parameters.numbers = [number]
        for name in ("computed", "weights", "used"):
            post.tensors[name] = post.tensors[name].split(SIZES)[number]
        post.tensors["bits"] = post.tensors["bits"][[number]]
        post.gradients.computed = {str(number): "float32"}
        post.tensors["places"] = torch.tensor([number, 0, SIZES[number]])
        post.parameters.updates = [post.parameters.updates[number]]
        post.tensors["updates"] = post.tensors["updates"].split([2 * n for n in SIZES])[number]

    return change


@pytest.mark.parametrize("number", [0, 1])
def test_part_of_the_parameters_is_judged(number: int) -> None:
    memory = Memory()

    assert judged(looks_at(number), memory) == []
    compared = {"replicas": 1, "gradients": 1, "updates": 2, "accumulation": 1}
    assert memory.compared.items() >= compared.items()


def test_optimizer_without_parameters_is_judged() -> None:
    def of_none(post: Post) -> None:
        none = torch.zeros(0, dtype=torch.int64)
        post.parameters.described, post.parameters.updates = [], []
        post.gradients.computed = {}
        post.tensors = {"bits": none, "first_bits": none, "places": none}

    assert judged(of_none) == []


@pytest.mark.parametrize("names", [(), ("probe.weight", "probe.bias")])
def test_ranks_with_unlike_optimizers_under_one_number_are_not_compared(
    names: tuple[str, ...],
) -> None:
    """Rank 0 has a probe of its own; or nobody knows what it has, as its first post came late."""

    def of_probe(post: Post) -> None:
        uses(-1.0)(post)
        sizes = zip(names, SIZES, strict=False)
        post.parameters.described = [described(name, size, []) for name, size in sizes]

    memory = Memory()
    assert judge(made_posts({0: of_probe}), memory) == []
    assert "an optimizer that others have not" in memory.not_seen["ranks"]
    assert bool(judge(made_posts({0: uses(-1.0)}), memory)) is not bool(names)


def test_cleared_gradients_are_a_fault_if_it_goes_on() -> None:
    def judged_in_a_row(*weights: float) -> list[int]:
        def change(post: Post) -> None:
            uses(1.5, slice(0, 4))(post)
            with_losses(*weights)(post)
            post.gradients.dropped = 3

        memory = Memory()
        return [len(judged(on_all(change), memory)) for _ in range(PATIENCE)]

    assert judged_in_a_row(0.5, 0.5) == [0] * (PATIENCE - 1) + [1]
    assert judged_in_a_row(1.0, 1.0) == [0] * PATIENCE  # both are of one batch, as with SAM
