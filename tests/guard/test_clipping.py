"""By which norm gradients are clipped."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

from harness.rank.guard.checks.clipping import clipping
from harness.rank.guard.checks.views import Memory, View
from harness.rank.guard.posting.packing import ParameterTable
from harness.rank.guard.posting.posts import Post
from harness.rank.guard.sampling.clips import ClipOrder
from harness.rank.guard.trainings.training import Training
from harness.rank.training.layouts import Described
from harness.rank.training.parameters import Modules

OWN = 3.0, 4.0
"""The norms of the gradients of both ranks: 5 together."""


def view(rank: int, norm: float, of: Described, length: float, limit: float) -> View:
    post = Post(rank, 0, 1)
    post.tensors = {"norms": torch.tensor([length]), "clipped": torch.tensor([norm, limit])}
    return View(post, ParameterTable.of([of]), None)


def described(name: str, begin: int = 0, end: int = 8, stages: int = 1) -> Described:
    return Described(name, 8, 8, begin, end, [], name, True, True, "float32", stages=stages)


def alarmed_ranks(
    norms: tuple[float, float],
    parts: Sequence[Described],
    lengths: tuple[float, float] = OWN,
    limit: float = 1.0,
) -> list[int]:
    """The ranks that are said to clip by another norm than that of all gradients."""
    pairs = zip(norms, parts, lengths, strict=True)
    views = [view(rank, *pair, limit) for rank, pair in enumerate(pairs)]
    return [rank for alarm in clipping(views, Memory()) for rank in alarm.ranks]


@pytest.mark.parametrize(
    ("norm", "limit", "scale", "ranks"),
    [
        (9e4, 1.0, 65536.0, [0, 1]),
        (9e4, 0.1, 1024.0, [0, 1]),
        (9e4, 5e4, 65536.0, []),  # the limit is multiplied by the scale
        (0.5, 1.0, 65536.0, []),  # nothing is clipped
        (9.0, 1.0, 1.0, []),
        (9e5, 655.36, 65536.0, []),  # the limit may be 0.01 times the scale
        (9e5, 1.0, 10_000.0, []),
        (math.inf, 1.0, 65536.0, []),  # the step is skipped
        (9.0, math.inf, 65536.0, []),  # the norm is only looked at
    ],
)
def test_clipping_before_a_loss_scaler_divides_is_told(
    norm: float, limit: float, scale: float, ranks: list[int]
) -> None:
    views = [view(rank, norm, described("weight"), norm, limit) for rank in range(2)]
    for rank_view in views:
        rank_view.post.tensors = {"scaled": torch.tensor([norm, limit, scale])}
    assert [rank for alarm in clipping(views, Memory()) for rank in alarm.ranks] == ranks


STAGES = described("first"), described("last")
SHARDS = described("weight", 0, 4), described("weight", 4, 8)
COPIES = described("weight"), described("weight")
TIED = described("weight", stages=2), described("weight", stages=2)


@pytest.mark.parametrize("parts", [STAGES, SHARDS])
def test_the_norm_of_all_ranks_is_right(parts: Sequence[Described]) -> None:
    assert alarmed_ranks((5.0, 5.0), parts) == []


def test_the_norm_of_the_first_stage_alone_is_told_on_the_others() -> None:
    assert alarmed_ranks((3.0, 3.0), STAGES) == [1]


def test_a_stage_may_have_a_limit_of_its_own_and_a_shard_may_not() -> None:
    assert alarmed_ranks((3.0, 4.0), STAGES) == []
    assert alarmed_ranks((3.0, 4.0), SHARDS) == [0, 1]


def test_copies_count_once_and_shared_weights_once_or_for_each_stage() -> None:
    assert alarmed_ranks((3.0, 3.0), COPIES, (3.0, 3.0)) == []
    assert alarmed_ranks((3.0, 3.0), TIED, (3.0, 3.0)) == []
    assert alarmed_ranks((math.sqrt(18),) * 2, TIED, (3.0, 3.0)) == []
    assert alarmed_ranks((math.sqrt(18),) * 2, COPIES, (3.0, 3.0)) == [0, 1]


def test_two_models_may_have_the_same_names() -> None:
    rank_view = view(0, 5.0, STAGES[0], 3.0, 1.0)
    rank_view.post.tensors["norms"] = torch.tensor([3.0, 4.0, 0.0])
    both = View(rank_view.post, ParameterTable.of([STAGES[0]] * 3), None)
    assert list(clipping([both], Memory())) == []


def test_a_norm_that_clips_nothing_is_no_fault() -> None:
    assert alarmed_ranks((3.0, 3.0), STAGES, limit=9.0) == []
    assert alarmed_ranks((math.inf, math.nan), STAGES) == []


def test_a_rank_that_clips_otherwise_ends_the_comparison() -> None:
    views = [view(0, 3.0, STAGES[0], 3.0, 1.0), view(1, 3.0, STAGES[1], 4.0, 1.0)]
    del views[1].post.tensors["norms"]
    assert list(clipping(views, Memory())) == []


@pytest.mark.parametrize(
    ("norm", "limit", "factor", "is_told"),
    [
        (20.0, 1.0, 0.05, False),
        (0.5, 1.0, 1.0, False),
        (20.0, 1.0, 1.0, True),  # the larger of two factors is taken, not the smaller
        (0.5, 1.0, 2.0, True),
        (math.nan, 1.0, math.nan, False),
        (0.0, 1.0, 1.0, False),
        (2.0, math.inf, 1.0, False),
    ],
)
def test_clipping_multiplies_by_the_limit_divided_by_the_norm(
    norm: float, limit: float, factor: float, is_told: bool
) -> None:
    rank_view = view(0, norm, STAGES[0], norm, limit)
    rank_view.post.tensors["after"] = factor * rank_view.post.tensors["norms"]
    alarms = [alarm for alarm in clipping([rank_view], Memory()) if alarm.kind == "clip"]
    assert [alarm.size for alarm in alarms] == ([pytest.approx(factor)] if is_told else [])


def clipped(clip: Callable[[Training, list[nn.Parameter]], None]) -> Post:
    """The post of a step in which gradients are clipped so."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    training = Training(optimizer, 0)
    others = set(Modules().parameters)  # models of other tests may still be there
    training.arm(others, Modules, lambda handler: handler)
    training.begin_backward("")
    model(torch.ones(1, 3)).sum().backward()
    training.checked.samples.end_backward()
    clip(training, list(model.parameters()))
    training.before_step()
    optimizer.step()
    training.after_step(1)
    post = training.post(0)
    training.disarm()
    return post


def begin_clip(training: Training, ids: set[int], norm_type: float) -> None:
    step = training.checked
    step.clips.begin(ids, norm_type, training.model.watched, step.numbers)


def test_norms_are_those_before_the_clipping() -> None:
    def clip(training: Training, parameters: list[nn.Parameter]) -> None:
        begin_clip(training, set(map(id, parameters)), 2.0)
        training.checked.clips.end(nn.utils.clip_grad_norm_(parameters, 0.5), 0.5)

    post = clipped(clip)
    lengths, (norm, limit) = post.tensors["norms"], post.tensors["clipped"].tolist()
    assert limit == 0.5
    assert float(lengths.norm()) == pytest.approx(norm)
    assert norm == pytest.approx(math.sqrt(8))
    assert float(post.tensors["after"].norm()) == pytest.approx(0.5)


@pytest.mark.slow
def test_a_part_of_the_gradients_and_other_norms_are_not_compared() -> None:
    def part(training: Training, parameters: list[nn.Parameter]) -> None:
        begin_clip(training, {id(parameters[0])}, 2.0)
        training.checked.clips.end(1.0, 0.5)

    def largest(training: Training, parameters: list[nn.Parameter]) -> None:
        begin_clip(training, set(map(id, parameters)), math.inf)
        training.checked.clips.end(1.0, 0.5)

    def twice(training: Training, parameters: list[nn.Parameter]) -> None:
        for _ in range(2):
            begin_clip(training, set(map(id, parameters)), 2.0)
            training.checked.clips.end(1.0, 0.5)

    for clip in (part, largest, twice):
        assert "norms" not in clipped(clip).tensors


@pytest.mark.parametrize(
    ("order", "limit", "alarms"),
    [
        ("LLL", 1.0, 1),
        ("LLLLLL", 1.0, 1),
        ("LLL", math.inf, 0),  # the norm is logged
        ("LLTLL", 1.0, 0),
        ("TTTT", 1.0, 0),
    ],
)
def test_clipping_after_the_step_is_told_once(order: str, limit: float, alarms: int) -> None:
    clip_order = ClipOrder()
    told = [clip_order.clipped(limit, is_late=one == "L") for one in order]
    assert len([alarm for alarm in told if alarm]) == alarms


def test_clipping_is_late_if_no_backward_ran_since_the_step() -> None:
    weight = nn.Parameter(torch.ones(2))
    training = Training(torch.optim.SGD([weight], 0.1), 0)
    for step in range(1, 5):
        training.note_clip(1.0, backwards=step)  # in time
        training.after_step(backwards=step)
    assert not training.alarms
    for step in range(5, 9):
        training.after_step(backwards=step)
        training.note_clip(1.0, backwards=step)
    assert [alarm.kind for alarm in training.alarms] == ["late"]
