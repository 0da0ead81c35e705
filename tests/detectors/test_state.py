"""The dump of a rank's state, and what a comparison of two dumps reports."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from harness.detectors.state import (
    MASTER,
    StateChange,
    changes_since,
    dump_changes,
    dump_state,
    main,
    master_copy,
    read_dump,
    state_changes,
    state_of,
)

NAN = float("nan")


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).to(torch.bfloat16)


def with_masters(module: nn.Module) -> Tensor:
    """Give each parameter an fp32 copy in one flat buffer, as DeepSpeed links them."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().float().reshape(-1) for p in parameters])
    fragments = flat.split([p.numel() for p in parameters])
    for parameter, fragment in zip(parameters, fragments, strict=True):
        vars(parameter)["_hp_mapping"] = SimpleNamespace(hp_fragment=fragment)
    return flat


def names(changes: list[StateChange]) -> list[str]:
    return [change.name for change in changes]


def test_an_unchanged_model_has_no_changes(tmp_path: Path) -> None:
    dump_state(tmp_path / "a" / "b", model())
    assert changes_since(tmp_path / "a" / "b", model()) == []


def test_a_change_names_the_place_and_both_values(tmp_path: Path) -> None:
    module = model()
    dump_state(tmp_path, module)
    with torch.no_grad():
        weight = module.get_parameter("0.weight")
        weight[1, 2] += 4
        weight[0, 0] += 1
    (change,) = changes_since(tmp_path, module)
    assert (change.name, change.place) == ("0.weight", (1, 2))
    assert change.after - change.before == pytest.approx(4, abs=0.02)
    assert change.greatest == abs(change.after - change.before)
    assert str(change).startswith("0.weight: 2 of 6 values differ, by up to 4")


def test_a_buffer_is_part_of_the_state(tmp_path: Path) -> None:
    module = model()
    dump_state(tmp_path, module)
    module(torch.ones(4, 3, dtype=torch.bfloat16))
    changed = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert names(changes_since(tmp_path, module)) == changed


def test_a_weight_and_its_master_copy_may_change_without_each_other(tmp_path: Path) -> None:
    module = model()
    flat = with_masters(module)
    dump_state(tmp_path, module)
    flat[0] += 1e-6
    (change,) = changes_since(tmp_path, module)
    assert (change.name, change.place) == ("0.weight" + MASTER, (0, 0))
    dump_state(tmp_path, module)
    nn.init.ones_(module.get_parameter("0.bias"))
    assert names(changes_since(tmp_path, module)) == ["0.bias"]


def test_a_dump_holds_no_more_than_it_names(tmp_path: Path) -> None:
    module = nn.Linear(2, 2)
    module.weight.data = torch.zeros(1_000_000)[:4].view(2, 2)
    assert dump_state(tmp_path, module).stat().st_size < 10_000


def test_a_fragment_of_a_master_copy_stays_flat() -> None:
    weight = torch.zeros(2, 3)
    assert master_copy(weight) is None
    vars(weight)["_hp_mapping"] = None
    assert master_copy(weight) is None
    vars(weight)["_hp_mapping"] = SimpleNamespace(hp_fragment=torch.ones(4))
    part = master_copy(weight)
    assert part is not None
    assert part.shape == (4,)


def test_a_partitioned_parameter_is_its_shard() -> None:
    module = nn.Linear(2, 2, bias=False)
    vars(module.weight)["ds_tensor"] = torch.ones(3)
    assert state_of(module)["weight"].tolist() == [1, 1, 1]


class Wrapper(nn.Module):
    """Like DistributedDataParallel or DeepSpeedEngine."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


def test_only_a_module_with_nothing_else_is_a_wrapper() -> None:
    outer = Wrapper(nn.Linear(2, 2, bias=False))
    assert set(state_of(outer)) == {"weight"}
    outer.head = nn.Linear(2, 2, bias=False)
    assert set(state_of(outer)) == {"module.weight", "head.weight"}


def test_an_optimizer_adds_its_moments_and_its_own_copies(tmp_path: Path) -> None:
    module = nn.Linear(2, 2, bias=False)
    copy = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([module.weight], lr=0.1)
    optimizer.add_param_group({"params": [copy]})
    dump_state(tmp_path, module, optimizer)
    assert set(read_dump(tmp_path, 0)) == {"weight", "optimizer.1.0"}
    module.weight.grad, copy.grad = torch.ones(2, 2), torch.ones(3)
    optimizer.step()
    changes = {change.name: change.about for change in changes_since(tmp_path, module, optimizer)}
    assert changes["weight (exp_avg)"] == "is new"
    assert changes["optimizer.1.0"].startswith("3 of 3 values differ, by up to 0.1")


CASES: dict[str, tuple[Tensor, Tensor, float]] = {
    "last bit": (torch.tensor([1.0, 2.0]), torch.tensor([1 + 2**-23, 2.0]), 2**-23),
    "signed zero": (torch.tensor([0.0]), torch.tensor([-0.0]), 0.0),
    "nan": (torch.tensor([NAN]), torch.tensor([1.0]), NAN),
    "nan beside a number": (torch.tensor([NAN, 1.0]), torch.tensor([1.0, 3.0]), 2.0),
    "integer": (torch.tensor(3), torch.tensor(5), 2.0),
    "boolean": (torch.tensor([True, False]), torch.tensor([True, True]), 1.0),
    "transposed": (torch.arange(4.0).view(2, 2).t(), torch.zeros(2, 2), 3.0),
}


@pytest.mark.parametrize("case", CASES)
def test_one_bit_is_enough_to_differ(case: str) -> None:
    before, after, greatest = CASES[case]
    (change,) = state_changes({"a": before}, {"a": after})
    assert change.greatest == pytest.approx(greatest, rel=0, nan_ok=True)


@pytest.mark.parametrize(
    "tensor",
    [torch.tensor([NAN]), torch.zeros(0), torch.tensor(1.5), torch.tensor([True])],
    ids=["nan", "empty", "scalar", "boolean"],
)
def test_the_same_bits_are_no_change(tensor: Tensor) -> None:
    assert state_changes({"a": tensor}, {"a": tensor.clone()}) == []


def test_gone_new_and_different_tensors_are_reported() -> None:
    before = {"gone": torch.ones(1), "shape": torch.ones(1), "kind": torch.ones(1)}
    after = {"shape": torch.ones(2), "kind": torch.ones(1, dtype=torch.int64), "new": torch.ones(1)}
    assert [str(change) for change in state_changes(before, after)] == [
        "gone: is gone",
        "shape: was float32 [1], is float32 [2]",
        "kind: was float32 [1], is int64 [1]",
        "new: is new",
    ]


def two_ranks(folder: Path, value: float) -> None:
    folder.mkdir()
    for rank, norm in enumerate((1.0, value)):
        torch.save({"norm": torch.full((2,), norm)}, folder / f"rank_{rank}.pt")


def test_the_dumps_of_all_ranks_are_compared(tmp_path: Path) -> None:
    two_ranks(tmp_path / "before", 0.9961)
    two_ranks(tmp_path / "after", 1.0)
    changes = dump_changes(tmp_path / "before", tmp_path / "after")
    assert list(changes) == [1]
    assert (changes[1][0].name, changes[1][0].after) == ("norm", 1.0)


@pytest.mark.parametrize("ranks", [(1,), (0, 1)])
def test_a_missing_rank_is_not_one_that_agrees(ranks: tuple[int, ...], tmp_path: Path) -> None:
    two_ranks(tmp_path / "before", 1.0)
    two_ranks(tmp_path / "after", 1.0)
    for rank in ranks:
        (tmp_path / "after" / f"rank_{rank}.pt").unlink()
    with pytest.raises(ValueError, match="has dumps of ranks"):
        dump_changes(tmp_path / "before", tmp_path / "after")
    with pytest.raises(FileNotFoundError):
        read_dump(tmp_path / "after", 1)


def test_two_dumps_are_compared_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    two_ranks(before, 0.5)
    two_ranks(after, 1.0)

    def typed(*folders: Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["state", *map(str, folders)])
        return main(), *capsys.readouterr()

    line = "rank 1: norm: 2 of 2 values differ, by up to 0.5: at [0] 0.5 before, 1 after\n"
    assert typed(before, before) == (0, "", "")
    assert typed(before, after) == (1, line, "")
    code, _, usage = typed(before)
    assert code == 2
    assert usage.startswith("usage:")
