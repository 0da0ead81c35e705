"""What users do with models has the same effect under guard: output, errors, exit codes."""

from __future__ import annotations

import re
import signal

import pytest

from tests.guard.trainer import Trainer

pytestmark = [pytest.mark.launch, pytest.mark.slow]


def without_guard(text: str) -> str:
    """What a process printed that is not of guard, without times and process numbers."""
    lines = [line for line in text.splitlines() if not line.startswith("guard:")]
    return re.sub(r"\d\d:\d\d:\d\d\.\d+ \d+", "", "\n".join(lines))


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("copies", 0, "guard: watches torch"),
        ("tensors", 0, "guard: watches torch"),
        ("scripts", 0, "guard: watches torch"),
        ("symbols", 0, "guard: watches torch"),
        ("compiles", 0, "guard: watches torch"),
        ("without_init", 0, ""),
        ("many_optimizers", 0, ""),
        ("clock_jumps", 0, "guard: watches torch"),
        ("threads", 0, "two threads of this process train"),
        ("report_vanishes", 0, "guard: the report cannot be written"),
        ("raises", 1, "IndexError"),
        ("exits", 5, ""),
        ("exits_at_once", 6, ""),
        ("interrupted", -signal.SIGINT, "KeyboardInterrupt"),
    ],
)
def test_a_case_has_the_same_effect(under_guard: Trainer, case: str, code: int, words: str) -> None:
    without, watched = (
        under_guard(request={"case": case}, ranks=1, watched=is_watched)
        for is_watched in (False, True)
    )
    assert watched.codes == without.codes == [code], watched.logs
    assert without_guard(watched.logs[0]) == without_guard(without.logs[0])
    assert words in watched.logs[0]
    assert "ALARM" not in watched.logs[0]
