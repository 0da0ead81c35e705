"""pytest for scenarios: ``pytest -m scenario`` runs every variant of every scenario.

Each variant is one test, and each scenario has one more for its verdict. ``--lane`` decides where
they run: on GPUs if the machine has enough, otherwise on the CPU. ``--jobs`` decides how many at
once.
"""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("scenarios")
    group.addoption(
        "--lane",
        choices=("auto", "cpu", "gpu"),
        default="auto",
        help="where scenarios run: on GPUs where there are enough (auto), or as said",
    )
    group.addoption(
        "--jobs",
        type=int,
        default=None,
        help="how many run side by side (default: one on the CPU, as many as there are GPUs)",
    )
    group.addoption(
        "--sharing", type=int, default=1, help="how many runs use a GPU side by side (default: 1)"
    )
    group.addoption(
        "--runs", type=Path, default=None, help="where run folders are kept (default: a temporary)"
    )
