"""The checks of a user that miss a bug. Standard library only."""

from __future__ import annotations

from collections.abc import Callable

from harness.bugs.api.spec import Records

Check = Callable[[Records], dict[str, bool]]
"""Returns what is checked, in words, and whether the check gives an alarm."""


def together(*checks: Check) -> Check:
    """All of these checks in one."""

    def all_of(records: Records) -> dict[str, bool]:
        return {name: fired for check in checks for name, fired in check(records).items()}

    return all_of
