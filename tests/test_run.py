"""What a run writes down before anything is launched."""

from __future__ import annotations

from pathlib import Path

from harness import catalog
from harness.files import sha256
from harness.trial import run
from harness.upstream.overlay import Overlay


def test_a_file_with_the_bug_may_be_missing_of_a_release_as_published_alone(
    tmp_path: Path,
) -> None:
    scenario = catalog.scenario("tied_resume_weight")
    there, missing = sorted(defect.file for defect in scenario.defects)
    lent = Overlay("key", tmp_path / "site", "", "")
    file = lent.site / there
    file.parent.mkdir(parents=True)
    file.write_text("released\n")
    # Grading finds no rank that loaded a file without a hash, and the trial proves nothing.
    assert run._watched(scenario, "fixed", lent) == {there: sha256(file), missing: ""}
    assert run._watched(scenario, "released", lent) == {there: sha256(file)}
