"""score attaches a detector to a training that does not know it, and judges its alarms."""

from __future__ import annotations

import gc
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
from harness.rank import attachment
from harness.rank.guard.posting.budget import FIRST_CHECKS
from harness.run.score.scoring import judged
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


def loop(rank: int, fault: str, steps: int = STEPS) -> None:
    """Data-parallel training with two micro-batches in a step, right or with a fault."""
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randint(11, (32, 6)))
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    batches = list(torch.utils.data.DataLoader(data, batch_size=2))
    for step in range(steps):
        for micro in range(2):
            (ids,) = batches[(4 * step + 2 * micro + rank) % len(batches)]
            loss = model(ids, labels=ids).loss
            (loss / 2).backward()
        for parameter in model.parameters():
            if fault != "own gradients" and dist.get_world_size() > 1:
                dist.all_reduce(parameter.grad)
                parameter.grad /= 2  # type: ignore[assignment,operator]
        optimizer.step()
        optimizer.zero_grad()
        if fault == "moved" and rank:
            with torch.no_grad():
                model.embed.weight += 0.1
        if fault == "not a number":
            nn.init.constant_(model.head.bias, torch.nan)


def reports(rank: int, folder: Path, faults: list[str], names: list[str]) -> None:
    """Run each loop with newly attached detectors."""
    for number, fault in enumerate(faults):
        detectors = [vars(command.detector_named(name)) for name in names]
        trial = folder / str(number)
        trial.mkdir(exist_ok=True)
        with attachment.attached(detectors, trial, "", rank):
            loop(rank, fault)
        dist.barrier()


OURS = ["usual/weights", "usual/nan"]

SEEN_BY = {
    RIGHT: set[str](),
    "own gradients": {"usual/weights"},
    "moved": {"usual/weights"},
    "not a number": {"usual/nan", "usual/weights"},  # no number equals it
}


@pytest.fixture(scope="module")
def alarms(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, list[Any]]]:
    """The alarms of both ranks, by fault and detector."""
    folder = tmp_path_factory.mktemp("attached")
    in_group(2, partial(reports, faults=list(SEEN_BY), names=OURS), folder)
    by_fault: dict[str, dict[str, list[Any]]] = {}
    for number, fault in enumerate(SEEN_BY):
        for rank in range(2):
            read = json.loads((attachment.file_of(folder / str(number), "", rank)).read_text())
            (training,) = read["trainings"]
            assert (training["model"], training["steps"]) == ("Small", STEPS)
            for name, report in training["detectors"].items():
                assert not report["error"]
                assert not report["changed"]
                by_fault.setdefault(fault, {}).setdefault(name, []).extend(report["alarms"])
    return by_fault


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

class Rows:
    def attach(self, model, optimizer, loader=None, *, group=None):
        self.seen = []
    def epoch(self, number):
        self.seen.append(0)
    def batch(self, batch):
        self.seen[-1] += 1
    def epoch_end(self, number):
        return f"{self.seen} batches"

class Writes:
    def record(self, path):
        self.path = path
    def attach(self, model, optimizer, loader=None, *, group=None):
        (self.path / "width").write_text(str(sum(p.numel() for p in model.parameters())))
    def judge(self, run):
        found = {file.read_text() for file in run.rglob("width")}
        return f"{run}: {found}" if found - {"5"} else None

class CannotRecord(Writes):
    def record(self, path):
        raise OSError("no room")

class NoGroup:
    def attach(self, model, optimizer): ...
    def step(self, number): ...

class Half:
    def judge(self, run): ...
"""


def train_with_own(rank: int, folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    detectors = [
        vars(command.detector_named(f"{folder}/own.py:{kind}")) for kind in ("Counts", "Draws")
    ]
    detectors.append(vars(command.detector_named(f"{folder}/own.py:Raises")))
    with attachment.attached(detectors, folder, "save", rank):
        loop(rank, RIGHT)


def test_a_user_s_detector_is_called_after_each_step_and_watched_itself(tmp_path: Path) -> None:
    in_group(1, train_with_own, tmp_path)
    read = json.loads(attachment.file_of(tmp_path, "save", 0).read_text())
    counts, draws, raises = read["trainings"][0]["detectors"].values()
    assert counts["alarms"] == [{"text": "Small []", "step": 2, "where": ""}]
    assert "draws random numbers" in draws["changed"]
    assert "ValueError: no" in raises["error"]
    assert raises["calls"] == 1


def rows(rank: int, folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    with attachment.attached(
        [vars(command.detector_named(f"{folder}/own.py:Rows"))], folder, "", rank
    ):
        data = torch.utils.data.TensorDataset(torch.arange(8))
        loader = torch.utils.data.DataLoader(data, batch_size=2)
        list(loader)
        next(iter(loader))  # the epoch does not end
        for _, _ in zip(range(4), loader, strict=False):  # as trainers do, without a fifth next()
            pass


def test_a_detector_of_a_loader_is_given_each_batch_and_the_end_of_each_epoch(
    tmp_path: Path,
) -> None:
    in_group(1, rows, tmp_path)
    (read,) = json.loads(attachment.file_of(tmp_path, "", 0).read_text())["trainings"]
    texts = [alarm["text"] for alarm in read["detectors"][f"{tmp_path}/own.py:Rows"]["alarms"]]
    assert texts == ["[4] batches", "[4, 1, 4] batches"]


def traced(rank: int, folder: Path, width: int) -> None:
    detectors = [vars(command.detector_named(f"{folder.parent}/own.py:Writes"))]
    with attachment.attached(detectors, folder, "", rank):
        model = nn.Linear(width, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        model(torch.ones(1, width)).sum().backward()
        optimizer.step()


def test_a_detector_judges_the_traces_that_it_has_written(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    detector = command.detector_named(f"{tmp_path}/own.py:Writes")
    said = {}
    for name, width in {"buggy": 5, "control": 4}.items():
        (tmp_path / name).mkdir()
        in_group(1, partial(traced, width=width), tmp_path / name)
        said[name] = judged(detector, attachment.traces_of(tmp_path / name, detector.name))
    alarms, error = said["buggy"]
    assert not error
    assert "{'6'}" in alarms[0]["text"]
    assert "buggy" not in alarms[0]["text"]  # its path would reveal it
    assert said["control"] == ([], "")


def train_while_nothing_is_recorded(rank: int, folder: Path) -> None:
    (folder / "own.py").write_text(OWN)
    with attachment.attached(
        [vars(command.detector_named(f"{folder}/own.py:CannotRecord"))], folder, "", rank
    ):
        loop(rank, RIGHT)


def test_a_detector_that_cannot_record_does_not_end_the_training(tmp_path: Path) -> None:
    in_group(1, train_while_nothing_is_recorded, tmp_path)
    read = json.loads(attachment.file_of(tmp_path, "", 0).read_text())
    (detector,) = read["trainings"][0]["detectors"].values()
    assert "OSError: no room" in detector["error"]


def under_guard(rank: int, folder: Path, fault: str) -> None:
    gc.collect()  # guard sees all models of this process, also garbage of the tests before
    with attachment.attached([vars(command.detector_named("guard"))], folder, "", rank):
        loop(rank, fault, steps=FIRST_CHECKS)
    dist.barrier()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "checks"),
    [
        (RIGHT, set[str]()),
        ("own gradients", set[str]()),  # no sampler, no wrapper: each rank may train its own model
        ("moved", {"replicas"}),
    ],
)
def test_guard_is_scored_as_a_detector(fault: str, checks: set[str], tmp_path: Path) -> None:
    in_group(2, partial(under_guard, fault=fault), tmp_path)
    detector = command.detector_named("guard")
    alarms, error = judged(detector, attachment.traces_of(tmp_path, detector.name))
    assert not error
    assert {alarm["text"].partition(":")[0] for alarm in alarms} == checks
    # Without a wrapper, ranks that reduce nothing may do local SGD: until the last first check.
    assert all(alarm["step"] in (1, 2, FIRST_CHECKS) for alarm in alarms)


def two_ranks(rank: int, folder: Path, *, seeds: list[int], epochs: bool) -> None:
    """Each rank reads its half of 32 rows in two epochs, as its seed shuffles them."""
    with attachment.attached([vars(command.detector_named("samples"))], folder, "", rank):
        data = torch.utils.data.TensorDataset(torch.arange(32))
        sampler: Any = torch.utils.data.DistributedSampler(data, seed=seeds[rank])
        loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
        for epoch in range(2):
            if epochs:
                sampler.set_epoch(epoch)
            list(loader)


@pytest.mark.parametrize(
    ("seeds", "epochs", "expected"),
    [
        ([0, 0], True, ""),
        ([0, 1], True, "rows came to more than one rank"),
        ([0, 0], False, "in the order of the epoch before it"),
    ],
)
def test_rows_that_come_twice_or_in_the_same_order_are_seen(
    seeds: list[int], epochs: bool, expected: str, tmp_path: Path
) -> None:
    in_group(2, partial(two_ranks, seeds=seeds, epochs=epochs), tmp_path)
    (read,) = json.loads(attachment.file_of(tmp_path, "", 0).read_text())["trainings"]
    alarms = [alarm["text"] for alarm in read["detectors"]["samples"]["alarms"]]
    assert bool(alarms) == bool(expected)
    assert all(expected in alarm for alarm in alarms)


@pytest.mark.parametrize("place", ["mine.py", "package/mine.py"])
def test_ranks_can_import_a_module_of_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """A rank does not have the command's PYTHONPATH: its packages are in an overlay."""
    file = tmp_path / "path" / place
    file.parent.mkdir(parents=True)
    file.write_text(
        "class Mine:\n"
        "    def attach(self, model, optimizer, loader, group=None): ...\n"
        "    def step(self, number): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "path")
    module = place.removesuffix(".py").replace("/", ".")
    assert command.detector_named(f"{module}:Mine").root == str(tmp_path / "path")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a detector"),
        (["sample"], "no detector 'sample': did you mean samples"),
        (["missing.py:Detector"], "no file missing.py"),
        (["{own}:Missing"], "has no class Missing"),
        (["{leaves}:Mine"], "SystemExit: 0"),
        (["{own}:Lazy"], "has no method attach"),
        (["{own}:Half"], "has no method record"),
        (["{own}:NoGroup"], "attach must take group="),
        (["guard", "guard/budget"], "one at a time"),
        (["samples", "seed=x"], "write whole numbers"),
        (["samples", "variant=buggy"], "leave variant=buggy out"),
        (["samples", "scenario=bf16"], "did you mean"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    files = {"own": tmp_path / "own.py", "leaves": tmp_path / "leaves.py"}
    arguments = [word.format(**files) for word in words]
    with pytest.raises(UserError, match=message):
        command.main(arguments)


@pytest.mark.scenario
def test_a_buggy_release_of_deepspeed_is_detected(capsys: pytest.CaptureFixture[str]) -> None:
    """Its optimizer keeps the gradients in its own buffers."""
    words = ["scenario=zero2_micro_batches_lost", "lane=cpu", "launch.timeout=120"]
    assert main(["score", "usual/weights", "guard", *words]) == 0
    printed = capsys.readouterr().out
    assert "zero2_micro_batches_lost, usual/weights: missed" in printed
    assert "zero2_micro_batches_lost, guard: detected at step 1" in printed
