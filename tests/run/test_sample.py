"""One scenario, run for real from the command line: DeepSpeed with a defect, two ranks that save,
and two that load.

``pytest -m scenario`` runs all scenarios with all variants.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.system.machine import cache_folder
from tests.overlays import lent
from tests.sandbox import Sandbox


@pytest.mark.launch
@pytest.mark.slow
def test_a_scenario_is_reproduced_from_the_command_line(tmp_path: Path) -> None:
    sandbox = Sandbox.under(tmp_path, cache_folder())
    try:
        with lent("tied_resume_norm", "buggy", "fixed"):
            ending = sandbox.run("run", "scenario=tied_resume_norm", "lane=cpu")
        assert ending.code == 0, ending
        assert "tied_resume_norm: reproduced" in ending.out
        assert sandbox.living() == []
    finally:
        sandbox.end()
