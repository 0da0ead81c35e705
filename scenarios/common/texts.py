"""A tokenizer of words that is made in code, for trainers that want texts. No hub, no download.

Imports transformers: import it inside ``run``.
"""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
"""The first tokens, numbered from 0; the others are words."""


def tokenizer(vocabulary: int, pad: int = 0) -> Any:
    """A tokenizer that splits at spaces, and adds no token of its own; ``pad`` pads."""
    words = [*SPECIAL, *(f"w{n}" for n in range(vocabulary - len(SPECIAL)))]
    backend = Tokenizer(models.WordLevel({w: n for n, w in enumerate(words)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token=words[pad],
    )
