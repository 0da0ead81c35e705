"""The fixture ``probe`` of pytest: docs/python.md.

Every session of pytest imports this module, so it imports nothing that pytest has not: what the
fixture needs is imported when a test uses it.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .results import ProbeResult

LINES = 15
"""Lines of a report that a failure prints."""


@pytest.fixture
def probe(request: pytest.FixtureRequest) -> Callable[..., ProbeResult]:
    """Run a training script in several layouts: ``probe("train.py", "--batch-size", "{rows}")``.

    The words are those of the command ``probe``, and the result has what it reports: ``assert
    report.right``.
    """
    from . import commands

    def run(*words: str) -> ProbeResult:
        mistake = ""
        try:
            report = commands.probe(*words)
        except commands.Error as error:
            mistake = "\n".join([str(error), *error.log])
        if mistake:  # outside of except: pytest would print both errors
            pytest.fail(f"probe: {mistake}", pytrace=False)
        lines = report.text.splitlines()
        ending = [f"... {len(lines) - LINES} more lines"] if len(lines) > LINES else []
        request.node.add_report_section("call", "probe", "\n".join([*lines[:LINES], *ending]))
        return report

    return run
