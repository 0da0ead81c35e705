"""What the judge says of changed posts."""

from __future__ import annotations

from unittest import mock

import torch

from harness.rank.guard.checks import together
from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import Alarm, Post
from tests.guard.made_posts import Change, made_posts, sums


def judged(changes: dict[int, Change] | None = None, ranks: int = 2) -> list[Alarm]:
    """The alarms of changed posts: the same after the posts were bytes, and without what looks at
    the gradients of all ranks together."""
    posts = made_posts(changes, ranks)
    alarms = judge(posts, Memory())
    sent = [unpacked(packed(post)) for post in posts]
    assert judge(sent, Memory()) == alarms
    with mock.patch.object(together, "right_gradients", return_value=None):
        assert judge(sent, Memory()) == alarms
    return alarms


def on_all(change: Change, ranks: int = 2) -> dict[int, Change]:
    return dict.fromkeys(range(ranks), change)


def the_alarm(alarms: list[Alarm]) -> Alarm:
    assert len(alarms) == 1, alarms
    return alarms[0]


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
        before = torch.cat([post.tensors["updates"][:16], post.tensors["updates"][32:36]])
        post.tensors["weights"] = before - 0.1 * gradient
        post.tensors["bits"] = sums(post.tensors["weights"])

    return change
