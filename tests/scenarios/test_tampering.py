"""Changed evidence is refused: the tables of cases are in ``tests/tampering``.

That another fault is not reported as the bug is shown by ``mutations.py`` of the scenarios, which
put other faults into upstream's code.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.bugs.api.spec import Outcome
from tests.tampering import facts, folder
from tests.tampering.changes import Case, graded


@pytest.mark.parametrize("case", [*folder.ALL, *facts.ALL], ids=str)
def test_a_trial_whose_evidence_was_changed_is_inconclusive(case: Case, tmp_path: Path) -> None:
    outcome, reason = graded(case, tmp_path)
    assert outcome is Outcome.INCONCLUSIVE
    assert case.says in reason
