"""A function that makes the loop's step, instead of a script: docs/probe_details.md shows one."""

from __future__ import annotations

import json
import re
from itertools import chain
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.rank.probe.made import micro_batches
from harness.system.files import ROOT


def example() -> str:
    """The file that docs/probe_details.md shows."""
    text = (ROOT / "docs/probe_details.md").read_text()
    block = re.search(r"```python\n(import contextlib.*?)```", text, re.DOTALL)
    assert block
    return block[1]


def probe(folder: Path, source: str) -> tuple[int, dict[str, dict[str, str]]]:
    (folder / "train_step.py").write_text(source)
    file = folder / "answers.json"
    code = main(["probe", "--json", str(file), "--make", f"{folder / 'train_step.py'}:make"])
    return code, {layout["kind"]: layout for layout in json.loads(file.read_text())["layouts"]}


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.usefixtures("command")
def test_the_example_is_as_the_reference_until_it_has_a_mistake(tmp_path: Path) -> None:
    code, layouts = probe(tmp_path, example())
    assert code == 0
    assert list(layouts) == ["ranks", "accumulation", "both"]
    mutant = example().replace(" / len(micro_batches)", "")
    assert mutant != example()
    code, layouts = probe(tmp_path, mutant)
    assert code == 1
    assert {name: layout["status"] for name, layout in layouts.items()} == {
        "ranks": "as the reference",
        "accumulation": "broken",
        "both": "broken",
    }


@pytest.mark.parametrize(("world", "k"), [(1, 1), (2, 1), (1, 3), (2, 3)])
def test_all_layouts_have_the_same_rows_in_each_step(world: int, k: int) -> None:
    for number in range(3):
        ranks = [micro_batches(number, rank, world, k, 12 // (world * k)) for rank in range(world)]
        assert {len(batches) for batches in ranks} == {k}
        rows = sorted(chain.from_iterable(chain.from_iterable(ranks)))
        assert rows == list(range(12 * number, 12 * (number + 1)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--make", "train_step.py"], "write file.py:function"),
        (["--make", "missing.py:make"], "there is no file missing.py"),
        (["--make", "a.py:make", "--save", "x", "--resume", "y"], "cannot save or resume"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", *arguments]) == 2
    assert message in capsys.readouterr().err
