"""By which norm gradients are clipped."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from harness.rank.guard.checks.clipping import clipping
from harness.rank.guard.checks.views import Memory, View
from harness.rank.guard.posting.packing import ParameterTable
from harness.rank.guard.posting.posts import Post
from harness.rank.guard.sampling.clips import ClipOrder
from harness.rank.training.layouts import Described

OWN = 3.0, 4.0
"""The norms of the gradients of both ranks: 5 together."""


def view(rank: int, norm: float, of: Described, length: float, limit: float) -> View:
    post = Post(rank, 0, 1)
    post.tensors = {"norms": torch.tensor([length]), "clipped": torch.tensor([norm, limit])}
    return View(post, ParameterTable.of([of]), None)


def described(name: str, begin: int = 0, end: int = 8, stages: int = 1) -> Described:
    return Described(name, 8, 8, begin, end, [], name, True, True, "float32", stages=stages)


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
ALL = math.sqrt(18)


@pytest.mark.parametrize(
    ("norms", "parts", "lengths", "limit", "ranks"),
    [
        ((5.0, 5.0), STAGES, OWN, 1.0, []),
        ((5.0, 5.0), SHARDS, OWN, 1.0, []),
        ((3.0, 3.0), STAGES, OWN, 1.0, [1]),  # the norm of the first stage alone
        ((3.0, 4.0), STAGES, OWN, 1.0, []),  # a stage may have a limit of its own
        ((3.0, 4.0), SHARDS, OWN, 1.0, [0, 1]),
        ((3.0, 3.0), COPIES, (3.0, 3.0), 1.0, []),  # copies count once
        ((ALL, ALL), COPIES, (3.0, 3.0), 1.0, [0, 1]),
        ((3.0, 3.0), TIED, (3.0, 3.0), 1.0, []),  # shared weights count once or for each stage
        ((ALL, ALL), TIED, (3.0, 3.0), 1.0, []),
        ((3.0, 3.0), STAGES, OWN, 9.0, []),  # it clips nothing
        ((math.inf, math.nan), STAGES, OWN, 1.0, []),
    ],
)
def test_ranks_that_clip_by_another_norm_than_that_of_all_gradients(
    norms: tuple[float, float],
    parts: Sequence[Described],
    lengths: tuple[float, float],
    limit: float,
    ranks: list[int],
) -> None:
    views = [
        view(rank, *trio, limit)
        for rank, trio in enumerate(zip(norms, parts, lengths, strict=True))
    ]
    assert [rank for alarm in clipping(views, Memory()) for rank in alarm.ranks] == ranks


def test_two_models_may_have_the_same_names() -> None:
    rank_view = view(0, 5.0, STAGES[0], 3.0, 1.0)
    rank_view.post.tensors["norms"] = torch.tensor([3.0, 4.0, 0.0])
    both = View(rank_view.post, ParameterTable.of([STAGES[0]] * 3), None)
    assert list(clipping([both], Memory())) == []


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
