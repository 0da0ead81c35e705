"""The judge: what it says of weights after the last step."""

from __future__ import annotations

import pytest

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import LAST
from tests.guard.made_posts import made_posts


@pytest.mark.parametrize(("is_frozen", "alarms"), [(False, ["differ"]), (True, [])])
def test_rank_0_may_write_an_average_into_all_weights_that_are_trained(
    is_frozen: bool, alarms: list[str]
) -> None:
    posts = made_posts()
    for post in posts:
        post.check = LAST
        post.parameters.described[0].optimized = not is_frozen
        if is_frozen:
            post.tensors["bits"][0] = post.tensors["first_bits"][0]
    posts[0].tensors["bits"][1] += 1
    assert [alarm.kind for alarm in judge(posts, Memory())] == alarms
