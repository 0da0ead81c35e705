"""Splits tests over days: CI runs a different part each day; the others are exhaustive tests."""

from __future__ import annotations

from datetime import date

import pytest

DAYS = 6
"""CI runs every case once in this many days."""


def later(number: int) -> list[pytest.MarkDecorator]:
    """The marks of the case with this number; empty on the day that CI runs it."""
    return [pytest.mark.exhaustive] if (number + date.today().toordinal()) % DAYS else []
