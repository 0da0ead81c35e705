"""Posts of a step that never happened: two parameters, trained by SGD on some ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from harness.rank.guard.posting.posts import GradientFacts, LossFacts, ParameterFacts, Post, Update
from harness.rank.guard.sampling.samples import bit_sum
from harness.rank.training.layouts import Described

NAMES, SIZES = ("weight", "bias"), (16, 4)
RATE = 0.1

Change = Callable[[Post], None]


def described(name: str, size: int, ranks: Sequence[int]) -> Described:
    return Described(name, size, size, 0, size, list(ranks), name, True, True, "float32")


def gradients(rank: int) -> Tensor:
    """What a rank computes for both parameters, one after the other."""
    return torch.randn(sum(SIZES), generator=torch.Generator().manual_seed(rank))


def made_posts(changes: dict[int, Change] | None = None, ranks: int = 2) -> list[Post]:
    """The posts of a right step, each changed as the function of its rank does."""
    mean = torch.stack([gradients(rank) for rank in range(ranks)]).mean(0)
    before = torch.linspace(-1, 1, sum(SIZES))
    posts = [_post(rank, ranks, mean, before) for rank in range(ranks)]
    for rank, change in (changes or {}).items():
        change(posts[rank])
    return posts


def _post(rank: int, ranks: int, mean: Tensor, before: Tensor) -> Post:
    group = {"lr": RATE, "momentum": 0.0, "weight_decay": 0.0}
    after = before - RATE * mean
    values = [
        piece
        for weight, gradient in zip(before.split(SIZES), mean.split(SIZES), strict=True)
        for piece in (weight, gradient)
    ]
    return Post(
        rank,
        optimizer=0,
        check=1,
        step=1,
        losses=LossFacts(has_batches=True),
        parameters=ParameterFacts(
            "SGD",
            [described(*one, range(ranks)) for one in zip(NAMES, SIZES, strict=True)],
            updates=[
                Update(number, size, [], 0.0, RATE, group) for number, size in enumerate(SIZES)
            ],
        ),
        gradients=GradientFacts(computed={"0": "float32", "1": "float32"}),
        tensors={
            "computed": gradients(rank),
            "used": mean.clone(),
            "places": torch.tensor([0, 0, SIZES[0], 1, 0, SIZES[1]]),
            "weights": after.clone(),
            "updates": torch.cat(values),
            "bits": sums(after),
            "first_bits": sums(before),
            "losses": torch.tensor([2.0, 2.0, 1.0, 1.0, 1.0]),
        },
    )


def sums(values: Tensor) -> Tensor:
    """The bit sum of each parameter."""
    return torch.stack([bit_sum(part) for part in values.split(SIZES)])


def with_losses(*weights: float, count: float = 1.0) -> Change:
    """Add losses of micro-batches that count so often."""

    def change(post: Post) -> None:
        rows = [[2.0 * weight, 2.0, weight, count, 1.0] for weight in weights]
        post.tensors["losses"] = torch.tensor(rows).flatten()

    return change
