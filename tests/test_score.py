"""score: a detector is attached to a training that does not know it, and judged by its alarms."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.__main__ import main
from harness.cli import score as command
from harness.runs import attachment
from harness.score import detectors
from harness.score.scores import Found, Watched, score
from harness.system.errors import UserError
from tests.group import in_group

RIGHT = ""
STEPS = 4


class Small(nn.Module):
    """A language model of two layers, with transformers' arguments and output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(11, 8), nn.Linear(8, 11)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.embed(input_ids))
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return SimpleNamespace(loss=loss, logits=logits)


def loop(rank: int, fault: str) -> None:
    """Data-parallel training with two micro-batches in a step, right or with a fault."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randint(11, (32, 6)))
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = list(torch.utils.data.DataLoader(data, batch_size=2))
    for step in range(STEPS):
        for micro in range(2):
            (ids,) = batches[4 * step + 2 * micro + rank]
            loss = model(ids, labels=ids).loss
            (loss if fault == "twice" else loss / 2).backward()
        for parameter in model.parameters():
            if fault != "own gradients" and dist.get_world_size() > 1:
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2  # type: ignore[assignment,operator]
        if fault == "lost":
            model.head.weight.grad.zero_()  # type: ignore[union-attr]
        optimizer.step()
        optimizer.zero_grad()
        if fault == "moved" and rank:
            with torch.no_grad():
                model.embed.weight += 0.1


def reports(rank: int, folder: Path, faults: list[str], names: list[str]) -> None:
    """Run each loop with these detectors; each is attached anew."""
    for number, fault in enumerate(faults):
        wanted = [vars(detectors.named(name)) for name in names]
        trial = folder / str(number)
        trial.mkdir(exist_ok=True)
        with attachment.attached(wanted, trial, "", rank):
            loop(rank, fault)
        dist.barrier()


OURS = ["accumulation", "gradients", "replicas", "updates", "usual/weights"]
SEEN_BY = {
    RIGHT: set[str](),
    "own gradients": {"gradients", "replicas", "usual/weights"},
    "lost": {"gradients"},
    "moved": {"replicas", "usual/weights"},
    "twice": {"accumulation"},
}


@pytest.fixture(scope="module")
def alarms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    """By fault and detector, the alarms of both ranks."""
    folder = tmp_path_factory.mktemp("attached")
    in_group(2, partial(reports, faults=list(SEEN_BY), names=OURS), folder)
    found: dict[str, dict[str, list[Any]]] = {}
    for number, fault in enumerate(SEEN_BY):
        for rank in range(2):
            read = json.loads((attachment.file_of(folder / str(number), "", rank)).read_text())
            (training,) = read["trainings"]
            assert (training["model"], training["steps"]) == ("Small", STEPS)
            for name, one in training["detectors"].items():
                assert not one["error"]
                assert not one["changed"]
                found.setdefault(fault, {}).setdefault(name, []).extend(one["alarms"])
    return found


@pytest.mark.parametrize("fault", SEEN_BY)
def test_each_fault_is_seen_by_its_detectors_and_by_no_other(
    fault: str, alarms: dict[str, dict[str, list[Any]]]
) -> None:
    assert {name for name, found in alarms[fault].items() if found} == SEEN_BY[fault]


OWN = """
import os, random, sys
import torch

class Counts:
    def attach(self, model, optimizer, loader=None, *, group=None):
        self.model = type(model).__name__
    def step(self, number):
        return f"{self.model} {sys.argv[1:]}" if number == 2 else None

class Draws(Counts):
    def step(self, number):
        torch.rand(1)

class Raises(Counts):
    def step(self, number):
        raise ValueError("no")

class Lazy:
    def step(self, number): ...
"""


def own(rank: int, folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    wanted = [vars(detectors.named(f"{folder}/own.py:{kind}")) for kind in ("Counts", "Draws")]
    wanted.append(vars(detectors.named(f"{folder}/own.py:Raises")))
    with attachment.attached(wanted, folder, "save", rank):
        loop(rank, RIGHT)


def test_a_user_s_detector_is_called_after_each_step_and_watched_itself(tmp_path: Path) -> None:
    in_group(1, own, tmp_path)
    read = json.loads(attachment.file_of(tmp_path, "save", 0).read_text())
    counts, draws, raises = read["trainings"][0]["detectors"].values()
    assert counts["alarms"] == [{"text": "Small []", "step": 2, "where": ""}]
    assert "draws random numbers" in draws["changed"]
    assert "ValueError: no" in raises["error"]
    assert raises["calls"] == 1


ALARM = [{"text": "wrong", "step": 3, "where": ""}]


def watched(variant: str, alarms: Any = (), **more: Any) -> Watched:
    symptom = variant == "buggy"
    return Watched(
        variant, 0, symptom, 1 if symptom else None, more.pop("attached", 1), alarms, **more
    )


@pytest.mark.parametrize(
    ("trials", "found"),
    [
        ([watched("buggy", ALARM), watched("control")], Found.DETECTED),
        ([watched("buggy"), watched("control")], Found.MISSED),
        ([watched("buggy", ALARM), watched("buggy"), watched("control")], Found.MISSED),
        ([watched("buggy", ALARM), watched("control", ALARM)], Found.FALSE_ALARM),
        ([watched("buggy"), watched("fixed", ALARM)], Found.FALSE_ALARM),
        ([watched("buggy", attached=0), watched("control")], Found.NOT_APPLICABLE),
        ([watched("buggy", ALARM, changed="weights"), watched("control")], Found.DISTURBS),
        ([watched("buggy", error="a\nb"), watched("control")], Found.NO_ANSWER),
        ([watched("buggy", ALARM)], Found.NO_ANSWER),
        ([watched("control")], Found.NO_ANSWER),
    ],
)
def test_a_bug_counts_only_with_an_alarm_where_it_is_and_none_elsewhere(
    trials: list[Watched], found: Found
) -> None:
    assert score("a", "b", trials).found is found


def test_the_delay_is_counted_from_the_first_step_with_the_symptom() -> None:
    one = score("a", "b", [watched("buggy", ALARM), watched("control")])
    assert (one.step, one.late) == (3, 2)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a detector"),
        (["gradient"], "no detector 'gradient': did you mean gradients"),
        (["missing.py:Detector"], "no module missing.py"),
        (["{own}:Missing"], "has no class Missing"),
        (["{own}:Lazy"], "has no method attach"),
        (["gradients", "seed=x"], "write whole numbers"),
        (["gradients", "variant=buggy"], "leave variant=buggy out"),
        (["gradients", "scenario=bf16"], "did you mean"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    given = [word.format(own=tmp_path / "own.py") for word in words]
    with pytest.raises(UserError, match=message):
        command.main(given)


def test_the_list_names_what_there_is_to_see(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--list", "scenario=bf16_clip"]) == 0
    printed = capsys.readouterr().out
    assert "bf16_clip" in printed
    assert "control" in printed


@pytest.mark.slow
def test_the_cost_of_a_detector_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--cost", "replicas", "usual/nan"]) == 0
    printed = capsys.readouterr().out
    assert "a step takes" in printed
    assert printed.count("%") == 2
