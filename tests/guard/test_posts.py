"""Posts are the same after they were bytes; what is no post is a ValueError."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch

from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import Alarm, Post
from tests.guard.judging import made_posts, with_losses


def full_post() -> Post:
    post = made_posts()[1]
    with_losses(0.5, 0.5)(post)
    post.data.rows, post.run.facts = [(0, [1, 2, 2**50])], {"releases": {"torch": "2.9.0"}}
    post.alarms = [Alarm("samples", "again", "twice", size=3.0)]
    post.tensors["used"] = torch.zeros(0)
    return post


def test_round_trip() -> None:
    post = full_post()
    read = unpacked(packed(post))

    assert list(read.parameters.described) == post.parameters.described
    assert [tuple(one) for one in read.data.rows] == post.data.rows
    read.parameters.described, read.run.form = post.parameters.described, ""
    assert replace(read, data=post.data, tensors={}) == replace(post, tensors={})
    assert read.tensors.keys() == post.tensors.keys()
    for name, tensor in post.tensors.items():
        assert read.tensors[name].dtype == tensor.dtype
        assert torch.equal(read.tensors[name], tensor)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 8, b"\0" * 7 + b"\2{}", b"\0" * 7 + b"\4null", b"\xff" * 40, b"made up"]
)
def test_what_is_no_post_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"post|Expecting|Extra data|decode|buffer"):
        unpacked(data)


def test_damaged_post_is_an_error_or_a_post() -> None:
    data, generator = packed(full_post()), random.Random(0)
    for _ in range(300):
        damaged = bytearray(data)
        damaged[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
        try:
            unpacked(bytes(damaged[: generator.randrange(len(data) + 1)]))
        except ValueError:
            continue
