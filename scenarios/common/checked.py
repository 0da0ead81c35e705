"""The checks of an oracle that miss its bug."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.bugs import api

Check = Callable[[api.Records], dict[str, bool]]


def together(*checks: Check) -> Check:
    """All of these checks in one."""

    def all_of(records: api.Records) -> dict[str, bool]:
        return {name: fired for check in checks for name, fired in check(records).items()}

    return all_of


class Checked:
    """The base class of an oracle with checks that miss its bug."""

    checks: Sequence[Check]

    def insufficient_checks(self, records: api.Records) -> dict[str, bool]:
        """The checks that miss this bug, and whether they fired."""
        return together(*self.checks)(records)
