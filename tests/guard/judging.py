"""Posts of a step that never happened, of two parameters that SGD trains on some ranks, and what
the judge says of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias
from unittest import mock

import torch
from torch import Tensor

from harness.rank.guard.checks import together
from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import (
    Alarm,
    GradientFacts,
    LossFacts,
    ParameterFacts,
    Post,
    Update,
)
from harness.rank.guard.sampling.samples import bit_sum
from harness.rank.training.layouts import Described

NAMES, SIZES = ("weight", "bias"), (16, 4)
RATE = 0.1

Change = Callable[[Post], None]
Changes: TypeAlias = "Change | dict[int, Change]"


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


def later() -> Memory:
    """What a judge keeps of one earlier check, whose step used the mean of the gradients."""
    memory = Memory()
    memory.losses.means = 1
    return memory


def judged(changes: Changes, memory: Memory | None = None, ranks: int = 2) -> list[Alarm]:
    """The alarms of posts, all or some of which are changed: the same after the posts were bytes,
    and without what looks at the gradients of all ranks together."""
    posts = made_posts(changes if isinstance(changes, dict) else on_all(changes, ranks), ranks)
    if memory is not None:
        return judge(posts, memory)
    alarms = judge(posts, later())
    sent = [unpacked(packed(post)) for post in posts]
    assert judge(sent, later()) == alarms
    with mock.patch.object(together, "right_gradients", return_value=None):
        assert judge(sent, later()) == alarms
    return alarms


def on_all(change: Change, ranks: int = 2) -> dict[int, Change]:
    return dict.fromkeys(range(ranks), change)


def before(post: Post) -> Tensor:
    """The weights before the step."""
    return torch.cat([post.tensors["updates"][:16], post.tensors["updates"][32:36]])


def uses_its_own(post: Post) -> None:
    """The optimizer of each rank uses what the rank has computed."""
    post.tensors["used"] = post.tensors["computed"].clone()
    uses(1.0)(post)


def no_wrapper(post: Post) -> None:
    for parameter in post.parameters.described:
        parameter.ranks = []


def kinds(alarms: Sequence[Alarm], check: str = "") -> list[str]:
    """The kinds of alarms, of one check or of all."""
    return [alarm.kind for alarm in alarms if check in ("", alarm.check)]


def moves_weight(by: float) -> Change:
    def change(post: Post) -> None:
        post.tensors["weights"][3] += by
        post.tensors["bits"] = sums(post.tensors["weights"])

    return change


def uses(factor: float, part: slice = slice(None)) -> Change:
    """The optimizer uses another gradient, and moves the weights by it."""

    def change(post: Post) -> None:
        gradient = post.tensors["used"]
        gradient[part] *= factor
        post.tensors["updates"][16:32] = gradient[:16]
        post.tensors["updates"][36:40] = gradient[16:]
        post.tensors["weights"] = before(post) - 0.1 * gradient
        post.tensors["bits"] = sums(post.tensors["weights"])

    return change
