"""The settings with which ranks step a parameter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.posts import Post
from tests.guard.made_posts import made_posts


def with_settings(**settings: Any) -> Any:
    def change(post: Post) -> None:
        post.parameters.kind = "Prodigy"
        for update in post.parameters.updates:
            update.group = {**update.group, **settings}

    return change


def alarms(first: dict[str, Any], second: dict[str, Any]) -> list[tuple[str, str]]:
    changes = {0: with_settings(**first), 1: with_settings(**second)}
    return [(one.check, one.kind) for one in judge(made_posts(changes), Memory())]


@pytest.mark.parametrize(
    ("first", "second"),
    [({"d": 1e-6}, {"d": 2e-6}), ({"weight_decay": 0.1}, {"weight_decay": 0.0})],
)
def test_other_settings_on_a_rank_are_told_once(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert alarms(first, second) == [("updates", "settings")]


def test_another_rate_is_told() -> None:
    posts = made_posts()
    posts[1].parameters.updates = [
        replace(update, rate=0.2) for update in posts[1].parameters.updates
    ]
    assert ("updates", "settings") in [(a.check, a.kind) for a in judge(posts, Memory())]


@pytest.mark.parametrize(
    ("first", "second"),
    [({"d": 1e-6}, {"d": 1e-6 * (1 + 1e-9)}), ({"seed": 0}, {"seed": 1}), ({"d": 1e-6}, {})],
)
def test_equal_settings_and_those_of_one_rank_are_silent(
    first: dict[str, Any], second: dict[str, Any]
) -> None:
    assert alarms(first, second) == []


def test_ranks_that_no_wrapper_joins_may_have_their_own() -> None:
    posts = made_posts({0: with_settings(d=1e-6), 1: with_settings(d=2e-6)})
    for post in posts:
        for described in post.parameters.described:
            described.ranks = []
    assert [a for a in judge(posts, Memory()) if a.kind == "settings"] == []
