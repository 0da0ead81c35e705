"""The user's command line, taken apart and filled in, and constants of a script that has no
arguments for them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.rank.probe.constants import changed, value
from harness.system.errors import UserError
from harness.training.probe.layouts import Settings
from harness.training.probe.target import Target, names, target

VALUES = {
    "rows": 4, "total": 24, "k": 3, "ranks": 2, "micro_batches": 6, "dir": "/checkpoints", "at": 2,
}  # fmt: skip


@pytest.fixture(autouse=True)
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(
    "launcher",
    [
        "",
        "python",
        "python3 -u",
        "torchrun --nproc-per-node 8",
        "torchrun --standalone --nproc-per-node=8",
        "python -m torch.distributed.run --nnodes 2 --nproc-per-node 8",
        "accelerate launch --num_processes 8 --multi_gpu",
        "deepspeed --num_gpus 8",
    ],
)
def test_the_launcher_is_left_out(launcher: str) -> None:
    command = target([*launcher.split(), "train.py", "--lr", "0.1"])
    assert command == Target("train.py", ("--lr", "0.1"))


@pytest.mark.parametrize("launcher", ["", "python", "torchrun --nproc-per-node 8"])
def test_a_module_needs_no_file(launcher: str) -> None:
    command = target([*launcher.split(), "-m", "package.train", "-m", "1"])
    assert command == Target("package.train", ("-m", "1"), module=True)


@pytest.mark.parametrize("file", ["train.py", "train/__main__.py"])
def test_a_module_is_found_in_the_current_folder(file: str) -> None:
    """That is where Python finds it, and not among the packages of this harness."""
    path = Path("package", file)
    path.parent.mkdir(parents=True)
    path.touch()
    assert target(["-m", "package.train"]).file == path.resolve()


def test_placeholders_are_filled_in_and_other_braces_are_left_alone() -> None:
    words = "--bs={rows}", "--fsdp", '{"a": {}}', "{other}", "--n={micro_batches}"
    command = Target("train.py", words)
    assert command.filled(VALUES, "--save {dir}/step-{at}") == [
        "--bs=4", "--fsdp", '{"a": {}}', "{other}", "--n=6", "--save", "/checkpoints/step-2",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("word", "filled"),
    [
        ("{total}", "24"),
        ("{rows*1024}", "4096"),
        ("{2*k}", "6"),
        ("--tokens={ rows * ranks * 8 },{k}", "--tokens=64,3"),
        ("a{2}", "a{2}"),
        ("{2*3}", "{2*3}"),
        ("{rows}x{total}", "4x24"),
        ('{"k": {k}, "r": [{rows*2}]}', '{"k": 3, "r": [8]}'),
    ],
)
def test_a_placeholder_may_be_multiplied(word: str, filled: str) -> None:
    assert Target("train.py", (word,)).filled(VALUES) == [filled]


def test_the_placeholders_of_a_command_are_known_by_name() -> None:
    assert names(["--tokens={total*1024}", "a{2}", "{x-1}"]) == {"total"}
    assert Target("train.py", ("{k*2}",)).names_micro_batches
    for word in ("{rows/2}", "{rows+1}", "{2*dir}", "{rows*x}", "{(rows*2)}"):
        with pytest.raises(UserError, match="write a placeholder"):
            names([word])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name a script"),
        (["torchrun", "--nproc-per-node", "2"], "name a script"),
        (["missing.py"], "there is no script missing.py"),
        (["accelerate", "launch", "--use_deepspeed", "train.py"], "is not obeyed"),
    ],
)
def test_a_mistake_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        target(words)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 10}, "multiple of 6"),
        ({"at": 4}, "must be below --steps"),
        ({"ranks": 1}, "more than --reference-ranks"),
        ({"layouts": ("rank",)}, "no layout rank"),
        ({"layouts": ("resume",)}, "needs --save and --resume"),
        ({"save": "--save {dir}"}, "needed together"),
    ],
)
def test_settings_that_no_layout_can_have_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Settings(**changes)  # type: ignore[arg-type]


CONSTANTS = """
batch_size = 5 * 8
config = {"lr": 2e-5, "batch_size": 16}
name = str(batch_size)
def main(rows, *, batch_size=32): ...
def load(data): return DataLoader(data, batch_size=64, shuffle=True)
class Config:
    batch_size: int = 12
    device = "cuda"
"""


def with_constants(values: Mapping[str, Any]) -> str:
    return ast.unparse(changed(CONSTANTS, "train.py", values))


def test_every_constant_of_that_name_is_set_and_nothing_else() -> None:
    text = with_constants({"batch_size": 4})
    assert text.count("4") == 5
    assert "batch_size = 4\n" in text
    assert "'batch_size': 4" in text
    assert "batch_size: int = 4" in text
    assert "str(batch_size)" in text
    assert "device = 'cuda'" in text


def test_a_name_without_a_constant_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UserError, match="no constant of this name; it has batch_size, device, lr"):
        with_constants({"rows": 4})
    with pytest.raises(UserError, match=r"--set rows: .* it has batch_size, device, lr"):
        with_constants({"lr": 1, "rows": 4})  # also the one that was set


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4", 4), ("2e-5", 2e-5), ("None", None), ("[1, 2]", [1, 2]), ("a/b", "a/b")],
)
def test_a_value_is_a_literal_or_text(text: str, expected: object) -> None:
    assert value(text) == expected
