"""Each alarm says what it has observed, and why no innocent loop can produce that."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import harness.rank.guard
from harness.rank.guard.check_table import NAMES
from harness.system.documents import toml_of
from tests.guard import right
from tests.guard.test_trainings import RIGHT, RIGHT_SLOW, WRONG, WRONG_SLOW

HERE = Path(__file__).parent
ALARMS = toml_of((HERE / "alarms.toml").read_text())["alarm"]
SILENT = {*right.LOOPS, *RIGHT, *RIGHT_SLOW}


def pairs_of_code() -> Iterator[tuple[str, str]]:
    """The check and the kind of each alarm that guard makes, but for those that it copies."""
    for path in Path(harness.rank.guard.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Alarm":
                names = [one.value for one in node.args[:2] if isinstance(one, ast.Constant)]
                if len(names) == 2:
                    yield str(names[0]), str(names[1])


def name(alarm: Any) -> str:
    return f"{alarm['check']} {alarm['kind']}"


def test_each_alarm_is_in_the_table_once() -> None:
    assert sorted(map(name, ALARMS)) == sorted(
        {f"{check} {kind}" for check, kind in pairs_of_code()}
    )


def test_each_alarm_is_of_a_check_that_an_option_chooses() -> None:
    assert {check for check, _ in pairs_of_code()} == set(NAMES)


@pytest.mark.parametrize("alarm", ALARMS, ids=name)
def test_alarm_is_a_proof(alarm: Any) -> None:
    assert all(alarm[field] for field in ("observation", "fault"))
    assert alarm.get("innocent") or alarm.get("none")
    for innocent in alarm.get("innocent", ()):
        assert all(innocent[field] for field in ("cause", "because"))
        assert innocent.get("loop", RIGHT[0]) in SILENT
    wrong = {fault.training for fault in (*WRONG, *WRONG_SLOW)}
    assert alarm["shown"] in wrong or (HERE / alarm["shown"]).is_file()
