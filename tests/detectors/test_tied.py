"""The detector for tied copies, in a real group over gloo and on a recorded run."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from harness.detectors.tied import tied_copies, tied_differences
from tests.group import in_group

NAMES = ["tied_modules.embed.word.weight", "tied_modules.embed.bias"]


def stage(
    group: dist.ProcessGroup | None, weight: float = 1.0, master: float = 1.0, norm: float = 1.0
) -> nn.Module:
    """A stage of a DeepSpeed pipeline that holds a copy of a tied module, with fp32 copies."""
    tied = nn.Module()
    tied.word = nn.Linear(3, 2, bias=False)
    tied.bias = nn.Parameter(torch.zeros(2))
    tied.norm = nn.LayerNorm(2)
    nn.init.constant_(tied.word.weight, weight)
    nn.init.constant_(tied.norm.weight, norm)
    for parameter, value in ((tied.word.weight, master), (tied.bias, 0.0)):
        fragment = torch.full((parameter.numel(),), value)
        vars(parameter)["_hp_mapping"] = SimpleNamespace(hp_fragment=fragment)
    module = nn.Module()
    comm = {"weight_attr": ["word.weight", "bias"], "module": tied, "group": group}
    vars(module)["tied_comms"] = {"embed": comm}
    return module


CASES: dict[str, tuple[Callable[[int, dist.ProcessGroup | None], nn.Module], bool]] = {
    "equal": (lambda rank, group: stage(group), True),
    "drifted": (lambda rank, group: stage(group, weight=1 + rank / 4), False),
    "hidden by a broadcast": (lambda rank, group: stage(group, master=1 + rank / 2), False),
    "drifted master": (lambda rank, group: stage(group, master=1 + rank / 2), True),
    "untied norm": (lambda rank, group: stage(group, norm=1 + rank), True),
    "on one stage": (lambda rank, group: nn.Linear(2, 2), True),
}


def ask(rank: int, folder: Path) -> None:
    """Run every case on one rank. Ranks 0 and 2 hold the tied copies; rank 1 holds none."""
    group = dist.new_group([0, 2])
    answers = {}
    for name, (build, masters) in CASES.items():
        module = nn.Linear(2, 2) if rank == 1 else build(rank // 2, group)
        differences = tied_differences(tied_copies(module, masters))
        answers[name] = [asdict(difference) for difference in differences]
    (folder / f"{rank}.json").write_text(json.dumps(answers))


Answers = list[dict[str, list[dict[str, Any]]]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """What each rank found, by case."""
    folder = tmp_path_factory.mktemp("group")
    in_group(3, ask, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(3)]


@pytest.mark.parametrize("case", CASES)
def test_the_ranks_with_a_copy_agree_and_the_other_finds_nothing(
    answers: Answers, case: str
) -> None:
    assert answers[0][case] == answers[2][case]
    assert answers[1][case] == []


WEIGHT = {"name": NAMES[0], "ranks": [1], "greatest": 0.25}
MASTER = {"name": NAMES[0] + " (fp32)", "ranks": [1], "greatest": 0.5}


@pytest.mark.parametrize(
    ("case", "differences"),
    [
        *((case, []) for case in ("equal", "untied norm", "on one stage", "hidden by a broadcast")),
        ("drifted", [WEIGHT]),
        ("drifted master", [MASTER]),
    ],
)
def test_copies_that_differ_are_found_in_the_masters_even_after_a_broadcast(
    answers: Answers, case: str, differences: list[dict[str, Any]]
) -> None:
    assert answers[0][case] == differences


def test_old_releases_name_one_attribute() -> None:
    module = stage(None)
    vars(module)["tied_comms"]["embed"]["weight_attr"] = "bias"
    assert [name for name, _, _ in tied_copies(module)] == [NAMES[1]]


@pytest.mark.parametrize("mapping", [None, SimpleNamespace(hp_fragment=torch.ones(4))])
def test_a_partitioned_master_copy_is_refused(mapping: object) -> None:
    module = stage(None)
    vars(vars(module)["tied_comms"]["embed"]["module"].word.weight)["_hp_mapping"] = mapping
    with pytest.raises(ValueError, match=f"no whole fp32 copy of {NAMES[0]}"):
        list(tied_copies(module, masters=True))
