"""--relation: the model of a script, packed, padded and generated with a cache, and the buffers
that no checkpoint contains."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from harness.__main__ import main
from harness.rank.models.answer import NoAnswer, Wrong
from harness.rank.probe.findings.model_relations import buffers
from harness.system.files import ROOT
from tests import made_models

pytestmark = [pytest.mark.launch, pytest.mark.usefixtures("command")]

SCRIPT = f"""
import sys
sys.path.insert(0, "{ROOT}")
import torch
from tests import made_models
torch.manual_seed(0)
model = getattr(made_models, sys.argv[1])()
optimizer = torch.optim.SGD(model.parameters(), 0.01)
ids = torch.randint(1, 30, (4, 24))
for _ in range(6):
    model(input_ids=ids, labels=ids)["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cls", "relation"),
    [
        (made_models.Decoder, ""),
        (made_models.IgnoresPositions, "packing"),
        (made_models.GeneratesTooFar, "generation"),
    ],
)
def test_the_model_of_a_script_is_asked(
    cls: type, relation: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["--json", str(tmp_path / "answers.json"), str(tmp_path / "train.py"), cls.__name__]
    code = main(["probe", "--relation", "packing,padding,cache", *words])
    answers = json.loads((tmp_path / "answers.json").read_text())
    statuses = {row["relation"]: row["status"] for row in answers["relations"]}
    assert {name for name, status in statuses.items() if status == "wrong"} == {relation} - {""}
    assert code == (1 if relation else 0)
    assert len(statuses) == 4
    assert ("BROKEN" in capsys.readouterr().out) == bool(relation)


@pytest.mark.slow
def test_a_model_without_token_ids_has_no_answer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\n"
        "m = torch.nn.Linear(4, 1)\n"
        "o = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for n in range(9):\n  m(torch.randn(2, 4)).sum().backward(); o.step(); o.zero_grad()\n"
    )
    assert main(["probe", "--relation", "packing", str(tmp_path / "train.py")]) == 3
    assert "NO ANSWER: the model is not given input_ids" in capsys.readouterr().out


class Turned(nn.Module):
    """A model with frequencies and cosines, made from a config."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.inv_freq: Tensor
        self.mean: Tensor
        self.config, self.head = config, nn.Linear(2, 2)
        frequencies = 1 / 7.0 ** torch.arange(4)
        positions = torch.outer(torch.arange(config.length).float(), frequencies)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("cos_cached", positions.cos(), persistent=False)
        self.register_buffer("mean", torch.zeros(3))


def model(length: int = 300) -> Turned:
    return Turned(SimpleNamespace(length=length, to_dict=dict))


def with_buffer(name: str, value: Tensor) -> Turned:
    module = model()
    setattr(module, name, value)
    return module


@pytest.mark.parametrize(
    "module",
    [
        with_buffer("mean", torch.ones(3)),  # a checkpoint has it, and training changes it
        nn.Sequential(nn.Linear(2, 2), model()),
        with_buffer("cos_cached", torch.zeros(900, 4)),  # it grew
    ],
)
def test_the_buffers_of_a_model_are_those_of_a_new_one(module: nn.Module) -> None:
    assert buffers(module) == "2 buffers"


def test_a_model_that_was_cast_is_right_but_its_frequencies_are_named() -> None:
    assert buffers(model().bfloat16()).startswith("2 buffers; frequencies are in bfloat16")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cosines_of_rounded_positions_are_wrong(dtype: torch.dtype) -> None:
    positions = torch.arange(300).bfloat16().float()
    cosines = torch.outer(positions, model().inv_freq).cos().to(dtype)
    with pytest.raises(Wrong, match=r"^cos_cached .* off by up to \d"):
        buffers(with_buffer("cos_cached", cosines))


def test_frequencies_that_were_computed_in_bf16_are_wrong_and_those_of_a_nan() -> None:
    computed = 1 / torch.tensor(7.0, dtype=torch.bfloat16) ** (torch.arange(4).bfloat16() / 1.3)
    for frequencies in (computed, torch.full((4,), math.nan)):
        with pytest.raises(Wrong, match="inv_freq"):
            buffers(with_buffer("inv_freq", frequencies))


def test_without_a_config_or_such_buffers_there_is_no_answer() -> None:
    with pytest.raises(NoAnswer, match="not made from a config"):
        buffers(nn.Linear(2, 2))
    module = model()
    module._non_persistent_buffers_set.clear()
    with pytest.raises(NoAnswer, match="a checkpoint has all"):
        buffers(module)
