"""Rows are recognised by their token ids, however a script passes them."""

from __future__ import annotations

from dataclasses import dataclass, is_dataclass
from typing import Any

import pytest
import torch

from harness.detectors.rows import checksum, have_same_order, leaves
from harness.rank.probe.recording.samples import bound, rows, rows_dimension

IDS = torch.tensor([[5, 6, 7, 0], [8, 9, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
WIDER = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 0, 0, 0]])


class Model(torch.nn.Module):
    def forward(self, input_ids: Any, attention_mask: Any = None, **more: Any) -> Any: ...


class Wrapper(torch.nn.Module):
    """Wraps a module as DistributedDataParallel does."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Any, **named: Any) -> Any: ...


class Unnamed(torch.nn.Module):
    def forward(self, *inputs: Any) -> Any: ...


def rows_of(module: torch.nn.Module, *arguments: Any, **named: Any) -> list[str]:
    return rows(*bound(module, arguments, named))


@pytest.mark.parametrize("module", [Model(), Wrapper(Model()), Wrapper(Wrapper(Model()))])
def test_token_ids_may_be_given_by_position(module: torch.nn.Module) -> None:
    by_name = rows_of(module, input_ids=IDS, attention_mask=MASK)
    assert rows_of(module, IDS, attention_mask=MASK) == by_name
    assert rows_of(module, IDS, MASK, labels=IDS) == by_name
    mask = torch.nn.functional.pad(MASK, (0, 1))
    assert rows_of(module, WIDER, attention_mask=mask) == by_name  # padding does not matter


def test_a_model_without_names_is_given_rows_too() -> None:
    assert rows_of(Unnamed(), IDS) == rows_of(Wrapper(Unnamed()), IDS)
    assert len(rows_of(Unnamed(), IDS)) == 2


FRAMES = torch.tensor([[[0.0, 1.0], [2.0, 0.0]], [[3.0, 4.0], [0.0, 0.0]]])


@pytest.mark.parametrize("pad", [(0, 3), (0, 1)])
def test_zeros_that_pad_a_batch_to_its_longest_row_do_not_matter(pad: tuple[int, int]) -> None:
    """The longest row of a batch has no padding; a smaller batch has another longest row."""
    ids = torch.tensor([[5, 6, 7], [5, 6, 8]])
    assert rows_of(Model(), torch.nn.functional.pad(ids, pad)) == rows_of(Model(), ids)
    on_the_left = torch.nn.functional.pad(ids, (2, 0))
    assert rows_of(Model(), on_the_left) == rows_of(Model(), ids)
    wider = torch.nn.functional.pad(FRAMES, pad)  # numbers of an audio file, say
    longer = torch.nn.functional.pad(FRAMES, (0, 0, *pad))
    for padded in (wider, longer):
        assert rows_of(Unnamed(), padded) == rows_of(Unnamed(), FRAMES)
    assert len({*rows_of(Unnamed(), FRAMES), *rows_of(Unnamed(), FRAMES * 0)}) == 3


def test_an_image_that_is_moved_is_another_row() -> None:
    image = torch.nn.functional.pad(FRAMES, (1, 0))
    assert not set(rows_of(Unnamed(), image)) & set(rows_of(Unnamed(), FRAMES))


def test_a_text_with_another_crop_of_its_picture_is_another_row() -> None:
    pictures = torch.arange(24.0).reshape(2, 3, 4)
    rows = rows_of(Model(), IDS, MASK, pixel_values=pictures)
    assert rows == rows_of(Model(), IDS, MASK, pixel_values=pictures.clone())
    cropped = rows_of(Model(), IDS, MASK, pixel_values=pictures[..., 1:])
    assert not set(rows) & set(cropped)
    # patches of all pictures in one tensor belong to no row
    assert rows_of(Model(), IDS, MASK, pixel_values=pictures[:1]) == rows_of(Model(), IDS, MASK)


@dataclass
class Output:
    scores: Any


def test_what_is_nested_is_found_by_its_innermost_name() -> None:
    nested = {"ids": 1, "more": {"mask": 2}, "pair": (3, [4]), "output": Output(scores=5)}
    assert list(leaves(nested, is_dataclass))[:4] == [("ids", 1), ("mask", 2), ("0", 3), ("0", 4)]
    assert list(leaves(nested, is_dataclass))[4:] == [("scores", 5)]
    assert list(leaves(nested))[4:] == [("output", nested["output"])]


def test_an_order_means_nothing_if_too_few_rows_differ() -> None:
    first, second = checksum(b"first"), checksum(b"second")
    assert have_same_order([first, second], [first, second])
    assert not have_same_order([first, second], [second, first])
    assert not have_same_order([first, first], [first, first])
    assert not have_same_order([first, second], [first, second], least=3)


def test_a_state_of_zeros_is_no_sample() -> None:
    """The first hidden state of a recurrent network is the same on all ranks."""
    x, hidden = torch.randn(3, 4), torch.zeros(1, 3, 16)
    assert rows([x, hidden], {}) == rows([x], {})
    assert len(rows([torch.zeros(3, 4)], {})) == 3


def test_a_batch_may_be_a_dataclass() -> None:
    @dataclass
    class Batch:
        x: Any
        names: list[str]

    x = torch.randn(3, 4)
    assert rows([Batch(x, ["a", "b", "c"])], {}) == rows([x], {})


def test_rows_may_come_second_if_the_first_batch_says_so() -> None:
    """A recurrent model reads time x rows x features. A later, smaller batch says nothing."""
    batch = torch.arange(24.0).reshape(4, 6) + 1
    by_row, by_time = rows([batch.T], {}), rows([batch], {})
    assert rows_dimension([batch], {}, 6) == 1
    assert rows([batch], {}, dimension=1) == by_row != by_time
    for rows_first in (4, 5, 0):
        assert rows_dimension([batch], {}, rows_first) == 0
    assert rows_dimension([], {"input_ids": batch.long()}, 6) == 0
    assert rows_dimension([batch[0]], {}, 6) == 0
