"""Samples of shards are those of the whole, a flipped bit changes a sum, all come in turn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.rank.guard.sampling.samples import (
    MOST,
    SIZE,
    Positions,
    appended,
    bit_sum,
    chosen,
    turns,
)
from tests.guard.test_trainings import assert_silent
from tests.guard.trainer import Trainer
from tests.guard.word_models import FAULT_STEP

KINDS = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.uint8]


@pytest.mark.parametrize("numel", [1, 2, 15, 16, 17, 100, 1001, 4096])
@pytest.mark.parametrize("check", [0, 1, 7])
@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_shards_together_have_the_positions_of_the_whole(
    numel: int, check: int, shards: int
) -> None:
    whole = torch.arange(numel, dtype=torch.float32)
    positions = Positions.of(numel, check)
    size = -(-numel // shards)
    parts: list[Tensor] = []
    for begin in range(0, size * shards, size):
        begin, end = min(begin, numel), min(begin + size, numel)
        begin_number, end_number = positions.within(begin, end)
        assert begin_number == end_number or begin_number == sum(len(part) for part in parts)
        parts.append(positions.part(whole[begin:end].clone(), begin, begin_number, end_number))
    assert torch.equal(torch.cat(parts), positions.values(whole))


@pytest.mark.parametrize("numel", [1, 16, 17, 1000])
def test_sample_has_all_values_or_enough(numel: int) -> None:
    values = Positions.of(numel, 3).values(torch.arange(numel, dtype=torch.float32))

    assert min(numel, SIZE) - 1 <= len(values) <= SIZE
    assert len(values.unique()) == len(values)


TABLE = torch.arange(600, dtype=torch.float32).reshape(20, 30)
SHAPES = [(32, 24), (3, 5, 7), (2, 40), (640, 1)]
MOVED = [torch.randn(*shape).movedim(dim, 0) for shape in SHAPES for dim in (1, -1)]


@pytest.mark.parametrize("view", [TABLE[3:9], TABLE.T, TABLE[:, ::2], *MOVED])
def test_sample_of_a_view_is_that_of_its_values(view: Tensor) -> None:
    positions = Positions.of(view.numel(), 2)
    assert torch.equal(positions.values(view), positions.values(view.clone().contiguous()))


def bits(tensor: Tensor) -> Tensor:
    """A view of a tensor as bytes."""
    return tensor.view(torch.uint8).view(-1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numel", [1, 2, 3, 7, 8, 33])
def test_each_flipped_bit_changes_the_sum(kind: torch.dtype, numel: int) -> None:
    tensor = (100 * torch.rand(numel, generator=torch.Generator().manual_seed(0))).to(kind)
    before, memory = int(bit_sum(tensor)), bits(tensor)
    for byte in range(len(memory)):
        for bit in range(8):
            memory[byte] ^= 1 << bit
            assert int(bit_sum(tensor)) != before
            memory[byte] ^= 1 << bit
    assert int(bit_sum(tensor)) == before


@pytest.mark.parametrize("kind", KINDS)
def test_each_flipped_bit_of_a_view_changes_the_sum(kind: torch.dtype) -> None:
    table = (100 * torch.rand(5, 6, generator=torch.Generator().manual_seed(0))).to(kind)
    for view in (table.T, table[:, 1:4], table[1:4], table.view(-1)[3:]):
        before = int(bit_sum(view))
        assert int(bit_sum(view.clone().contiguous())) == before or not view.is_contiguous()
        for row in range(table.shape[0]):
            for column in range(table.shape[1]):
                cell = bits(table[row, column : column + 1])
                probe = torch.zeros_like(table, dtype=torch.bool)
                probe[row, column] = True
                inside = probe.as_strided(view.shape, view.stride(), view.storage_offset()).any()
                cell[-1] ^= 4
                assert (int(bit_sum(view)) != before) == bool(inside)
                cell[-1] ^= 4


def test_shards_of_another_dimension_have_the_values_of_the_whole() -> None:
    whole = torch.randn(6, 32)
    positions = Positions.of(whole.numel(), 2)
    parts = []
    for rank, shard in enumerate(whole.chunk(4, 1)):
        begin = rank * shard.numel()
        begin_number, end_number = positions.within(begin, begin + shard.numel())
        parts.append(positions.part(shard.movedim(1, 0), begin, begin_number, end_number))

    assert torch.equal(torch.cat(parts), positions.values(whole.movedim(1, 0)))


def test_values_stay_on_their_device_where_a_group_of_a_step_adds_none() -> None:
    """A wrapper steps one group of parameters after the other. A check may look at none of it."""
    values = torch.ones(3, device="meta")
    for parts in ([[], [values]], [[values], []], [[], [values], [], [values]]):
        collected = None
        for part in parts:
            collected = appended(collected, part)
        assert collected is not None
        assert collected.device == values.device
        assert len(collected) == 3 * sum(map(len, parts))


NAMES = tuple(f"layers.{layer}.{name}" for layer in range(80) for name in ("up", "down", "norm"))


def test_first_check_looks_at_all_parameters_and_later_ones_at_a_part() -> None:
    assert chosen(NAMES, 1) == list(range(len(NAMES)))
    assert all(0 < len(chosen(NAMES, check)) < 2 * MOST for check in range(2, 40))


@pytest.mark.parametrize("start", [2, 3, 17])
def test_each_parameter_comes_once_in_the_turns(start: int) -> None:
    looked_at = [
        n for check in range(start, start + turns(len(NAMES))) for n in chosen(NAMES, check)
    ]
    assert sorted(looked_at) == list(range(len(NAMES)))


def test_ranks_with_other_parameters_look_at_the_same_ones() -> None:
    """A stage of a pipeline has fewer: what it looks at, and has in common, the others look at."""
    stage = NAMES[-90:]
    for check in range(2, 40):
        others = {NAMES[number] for number in chosen(NAMES, check)}
        mine = {stage[number] for number in chosen(stage, check)}
        assert mine >= others & set(stage)


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize("training", ["ddp deep flipped", "hsdp deep flipped"])
def test_flipped_bit_in_a_deep_model_is_found_after_a_turn(
    under_guard: Trainer, training: str
) -> None:
    run = under_guard(training, steps=40)

    (alarm,) = run.alarms
    checked = [step for step in run.summary["checked"] if step >= FAULT_STEP]
    assert alarm["parameters"] == ["out.weight"]
    assert alarm["step"] in checked[: turns(32 * 6)]
    assert run.codes == [0, 0]


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    "training", ["ddp deep accumulate clip", "ddp deep fp16", "fsdp2 deep mixed", "hsdp deep"]
)
def test_right_training_of_a_deep_model_is_silent(under_guard: Trainer, training: str) -> None:
    assert_silent(under_guard, training, steps=40)
