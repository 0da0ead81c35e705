"""The further cases of a test that starts processes: CI runs them in turn."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.mark import ParameterSet


def slow(*cases: Any) -> list[ParameterSet]:
    """These cases of a parametrized test as slow ones; a tuple has several values."""
    values = (case if isinstance(case, tuple) else (case,) for case in cases)
    return [pytest.param(*each, marks=pytest.mark.slow) for each in values]
