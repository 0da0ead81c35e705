"""Documents that were padded to the length of a row, in upstream's format. Imports upstream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder
from megatron.core.datasets.utils import Split

from harness.bugs import api
from scenarios.megatron_core.earlier_padding_masked.scenario import END, LENGTH, PADDING, WORDS

SHUFFLE = 1
"""The seed of the order. It puts a row with padding first, also if the reading starts later."""


def dataset(ctx: api.Context) -> Any:
    """Upstream's data set over documents of one row each, which it shuffles."""
    prefix = _write(ctx)
    tokenizer = SimpleNamespace(
        pad=PADDING, eod=END, vocab_size=PADDING + 1, unique_identifiers={"words": WORDS}
    )
    tokenizer.special_tokens_dict = {}
    config = GPTDatasetConfig(
        random_seed=SHUFFLE,
        sequence_length=LENGTH,
        blend=([prefix], None),
        split="1,0,0",
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=ctx.params.mask_ends,
        tokenizer=tokenizer,
        path_to_cache=str(ctx.folder / "cache"),
    )
    documents = np.arange(ctx.params.documents, dtype=np.int32)
    return GPTDataset(IndexedDataset(prefix), prefix, documents, None, Split.train, config)


def _write(ctx: api.Context) -> str:
    """Write documents with 0, 1, 2, ... tokens of padding, in turn; return the prefix of their files."""
    prefix = str(ctx.folder / "documents")
    builder = IndexedDatasetBuilder(f"{prefix}.bin", dtype=np.int32)
    generator = np.random.default_rng(ctx.seed)
    for number in range(ctx.params.documents):
        padding = number % (ctx.params.padding + 1)
        words = 1 + np.arange(LENGTH - padding) % (WORDS - 1)
        row = [*(words + generator.integers(WORDS - LENGTH)), *[PADDING] * padding]
        builder.add_item(torch.tensor(row, dtype=torch.int32))
        builder.end_document()
    builder.finalize(f"{prefix}.idx")
    return prefix
