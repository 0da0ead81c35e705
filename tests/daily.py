"""What CI does in part each day, another part each day: the rest are exhaustive tests."""

from __future__ import annotations

from datetime import date

import pytest

DAYS = 6
"""After so many days CI has done everything."""


def later(number: int) -> list[pytest.MarkDecorator]:
    """The marks of a case with this number: none on its day."""
    return [pytest.mark.exhaustive] if (number + date.today().toordinal()) % DAYS else []
