"""A condition of bug.toml for a value, and its words."""

from __future__ import annotations

from typing import Any

import pytest

from harness.system.conditions import holds, in_words


@pytest.mark.parametrize(
    ("condition", "value", "holds_", "words"),
    [
        (2, 2, True, "2"),
        ([2, 3], 3, True, "2 or 3"),
        ([2, 3], 1, False, "2 or 3"),
        ({"above": 1}, 2, True, "above 1"),
        ({"above": 1}, 1, False, "above 1"),
        ({"below": 0.5}, 0.5, False, "below 0.5"),
        ({"below": 0.5}, 0, True, "below 0.5"),
        ({"above": 0}, True, False, "above 0"),  # a flag is no number
        ({"above": 0}, "bf16", False, "above 0"),
        (True, 1, False, "on"),
        ({"not": "no"}, "yes", True, "not no"),
        ({"not": [0, 1]}, 1, False, "not 0 or 1"),
    ],
)
def test_a_condition_holds_for_a_value(
    condition: Any, value: Any, holds_: bool, words: str
) -> None:
    assert holds(condition, value) is holds_
    assert in_words(condition) == words
