"""The patches that we propose to maintainers who do not know a bug, run as users would."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.__main__ import main
from harness.bugs import catalog
from harness.bugs.periods import alive

BUGS = [
    name
    for name in catalog.sound()
    if (catalog.folder(name) / catalog.REPORT).is_file() and alive(name)
]


def test_each_bug_that_maintainers_do_not_know_has_a_proposal() -> None:
    without = [name for name in BUGS if not catalog.proposal(name)]
    assert not without, "write proposal.py: an edit of upstream that mends the bug"


SURELY = {"fp16_overflow_stage0": ["scenario.lr=0.24"]}
"""With these overrides the trigger occurs on every machine. With the patch, the scenario's own rate
overflows at step 115, or not at all, as the processor rounds."""


@pytest.mark.launch
@pytest.mark.slow
@pytest.mark.by_day(6)
@pytest.mark.parametrize("name", BUGS)
def test_the_proposal_mends_the_newest_release_that_has_the_bug(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bug = alive(name)
    assert bug
    pin = f"pins.{catalog.subject(name)}={bug.release}"
    if catalog.subject(name) == "torch":
        pin = "pins.torch=installed"
    assert main(["show", name, "--patch", *([pin] if "installed" not in pin else [])]) == 0
    patch = tmp_path / "proposal.diff"
    patch.write_text(capsys.readouterr().out)
    assert "+++ patched/" in patch.read_text()
    words = [f"scenario={name}", "variant=released", pin, f"patch={patch}", f"runs={tmp_path}"]
    words += SURELY.get(name, [])
    assert main(["run", *words]) == 0
    assert "released   clean" in capsys.readouterr().out
