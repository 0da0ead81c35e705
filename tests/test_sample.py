"""A sample of scenarios, run for real: it has each upstream and each kind of launch once.

``pytest -m scenario`` runs all scenarios with all variants.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.system.machine import cache_folder
from tests.overlays import lent
from tests.sandbox import Sandbox

SAMPLE = [
    "tied_resume_norm",  # DeepSpeed with a defect, two ranks that save, and two that load
    "tied_embedding_order",  # megatron-core, four ranks
    "trainer_gas_twice",  # transformers, one rank
    "streaming_map_resume",  # datasets
    "sampler_shards",  # accelerate
]


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    sandbox = Sandbox.under(tmp_path, cache_folder())
    yield sandbox
    sandbox.end()


@pytest.mark.launch
@pytest.mark.parametrize("scenario", SAMPLE)
def test_a_scenario_is_reproduced_from_the_command_line(scenario: str, sandbox: Sandbox) -> None:
    with lent(scenario, "buggy", "fixed"):
        done = sandbox.run("run", f"scenario={scenario}", "launch=cpu")
    assert done.code == 0, done
    assert f"{scenario}: reproduced" in done.out
    assert sandbox.living() == []
