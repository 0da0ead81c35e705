"""Days that users write."""

from __future__ import annotations

from datetime import date, datetime, timezone

from harness.system.text import short


def past_day(text: str) -> date:
    """A day (ISO) up to that of now in UTC. Raises ValueError, with what to write, for others."""
    try:
        day = date.fromisoformat(text)
    except ValueError:
        day = None
    if day is None or day.isoformat() != text:
        raise ValueError(f"{short(text)} is not a day: write one like 2024-03-04")
    today = datetime.now(timezone.utc).date().isoformat()
    if text > today:
        raise ValueError(f"{text} is in the future: today is {today}")
    return day
