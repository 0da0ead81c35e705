"""The detector for replicas that differ, in a real group of two processes over gloo."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.detectors.replicas import replica_differences, replicated_parameters
from tests.group import in_group

Named = list[tuple[str, Tensor]]
NAN = float("nan")


def on(rank: int, of_rank_0: Any, of_rank_1: Any, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(of_rank_1 if rank else of_rank_0, dtype=dtype)


CASES: dict[str, Callable[[int], Named]] = {
    "equal": lambda rank: [("a", torch.arange(6.0).view(2, 3)), ("b", torch.tensor(1.5))],
    "last bit": lambda rank: [("a", torch.ones(3)), ("b", on(rank, [2.0, 1.0], [2.0, 1 + 2**-23]))],
    "signed zero": lambda rank: [("a", on(rank, [0.0], [-0.0]))],
    "same nan": lambda rank: [("a", torch.tensor([NAN, 1.0]))],
    "nan on one": lambda rank: [("a", on(rank, [NAN], [1.0]))],
    "dtypes": lambda rank: [
        ("whole", on(rank, [1], [5], torch.int64)),
        ("equal", torch.ones(2)),
        ("brain", on(rank, [1.0], [1.5], torch.bfloat16)),
        ("float", on(rank, [1.0], [0.75])),
    ],
    "transposed": lambda rank: [("a", torch.arange(4.0).view(2, 2).t() + rank)],
    "gradient": lambda rank: [("a", torch.nn.Parameter(torch.ones(2) * (1 + rank)))],
    "nothing": lambda rank: [],
}


def ask(rank: int, folder: Path) -> None:
    """Run every case on one rank, and write the answers to a file."""
    answers = {name: [asdict(d) for d in replica_differences(c(rank))] for name, c in CASES.items()}
    (folder / f"{rank}.json").write_text(json.dumps(answers))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[dict[str, Any]]]]:
    """What each rank found, by case."""
    folder = tmp_path_factory.mktemp("group")
    in_group(2, ask, folder)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


Answers = list[dict[str, list[dict[str, Any]]]]


@pytest.mark.parametrize("case", CASES)
def test_every_rank_gets_the_same_answer(answers: Answers, case: str) -> None:
    assert json.dumps(answers[0][case]) == json.dumps(answers[1][case])


@pytest.mark.parametrize("case", ["equal", "same nan", "nothing"])
def test_copies_with_the_same_bits_agree(answers: Answers, case: str) -> None:
    assert answers[0][case] == []


@pytest.mark.parametrize(
    ("case", "greatest"),
    [("last bit", 2**-23), ("signed zero", 0.0), ("transposed", 1.0), ("gradient", 1.0)],
)
def test_one_bit_is_enough_to_differ(answers: Answers, case: str, greatest: float) -> None:
    (difference,) = answers[0][case]
    assert difference == {
        "name": "b" if case == "last bit" else "a",
        "ranks": [1],
        "greatest": greatest,
    }


def test_a_nan_on_one_rank_is_a_difference(answers: Answers) -> None:
    (difference,) = answers[0]["nan on one"]
    assert math.isnan(difference["greatest"])


def test_differences_of_all_dtypes_come_in_the_order_of_the_tensors(answers: Answers) -> None:
    greatest = {each["name"]: each["greatest"] for each in answers[0]["dtypes"]}
    assert list(greatest.items()) == [("whole", 4.0), ("brain", 0.5), ("float", 0.25)]


def test_shards_are_no_replicas() -> None:
    module = torch.nn.Linear(2, 2)
    vars(module.weight)["tensor_model_parallel"] = True
    vars(module.bias)["tensor_model_parallel"] = False
    assert [name for name, _ in replicated_parameters(module)] == ["bias"]
