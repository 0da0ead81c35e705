"""--relation: the model of a script, packed, padded and generated with a cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.__main__ import main
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
