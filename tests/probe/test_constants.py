"""--set: constants of a script that has no arguments for them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

import pytest

from harness.rank.probe.constants import changed, value
from harness.system.errors import UserError

SCRIPT = """
batch_size = 5 * 8
config = {"lr": 2e-5, "batch_size": 16}
name = str(batch_size)
def main(rows, *, batch_size=32): ...
def load(data): return DataLoader(data, batch_size=64, shuffle=True)
class Config:
    batch_size: int = 12
    device = "cuda"
"""


def run(values: Mapping[str, Any]) -> str:
    return ast.unparse(changed(SCRIPT, "train.py", values))


def test_every_constant_of_that_name_is_set_and_nothing_else() -> None:
    text = run({"batch_size": 4})
    assert text.count("4") == 5
    assert "batch_size = 4\n" in text
    assert "'batch_size': 4" in text
    assert "batch_size: int = 4" in text
    assert "str(batch_size)" in text
    assert "device = 'cuda'" in text


def test_a_name_without_a_constant_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match="no constant of this name; it has batch_size, device, lr"):
        run({"rows": 4})
    with pytest.raises(UserError, match=r"--set rows: .* it has batch_size, device, lr"):
        run({"lr": 1, "rows": 4})  # also the one that was set


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", 4), ("2e-5", 2e-5), ("None", None), ("[1, 2]", [1, 2]), ("a/b", "a/b")],
)
def test_a_value_is_a_literal_or_text(text: str, expected: object) -> None:
    assert value(text) == expected
