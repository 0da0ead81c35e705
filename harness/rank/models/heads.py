"""The heads of models: which list of transformers has their classes, and what their labels mean.

A model is named by a word: ``llama``, ``bert:masked_lm``, the path of a ``config.json``, or
``FILE.py:FUNCTION``; the last two can have a head behind a colon, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

SUBJECT = "transformers"
"""The package that has the models."""


class Labels(Enum):
    """To what the labels of a batch belong."""

    NEXT_TOKEN = "next token"
    """They are the tokens. The model shifts them: each token predicts the next one."""
    TOKEN = "token"
    """Each belongs to the logits of the same place."""
    ROW = "row"
    """One for each row."""


@dataclass(frozen=True)
class Head:
    """What a model computes from its last layer."""

    mapping: str
    """The list of its classes in transformers' modeling_auto.py, with the ending ``_NAMES``."""
    labels: Labels
    classes: bool = False
    """Whether it predicts one of a few classes, not a token."""
    decoder: bool = False
    """Whether its model must have an encoder and a decoder."""
    pixels: bool = False
    """Whether its rows are images."""
    unasked: Mapping[str, str] = field(default_factory=dict)
    """Relations that have no meaning for it, and why."""


CAUSAL = "causal_lm"
"""The head if a word does not name one."""

_ENCODER = {
    "packing": "a head that sees whole rows has no packed ones",
    "generation": "the head does not generate",
}

HEADS: Mapping[str, Head] = {
    CAUSAL: Head("MODEL_FOR_CAUSAL_LM_MAPPING", Labels.NEXT_TOKEN),
    "masked_lm": Head("MODEL_FOR_MASKED_LM_MAPPING", Labels.TOKEN, unasked=_ENCODER),
    "seq2seq_lm": Head(
        "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING",
        Labels.TOKEN,
        decoder=True,
        unasked={"packing": "an encoder-decoder has no packed rows"},
    ),
    "sequence_classification": Head(
        "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING", Labels.ROW, classes=True, unasked=_ENCODER
    ),
    "token_classification": Head(
        "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING", Labels.TOKEN, classes=True, unasked=_ENCODER
    ),
    "image_classification": Head(
        "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING",
        Labels.ROW,
        classes=True,
        pixels=True,
        unasked=dict.fromkeys(
            ("padding_right", "padding_left", "packing", "generation"), "images have no tokens"
        ),
    ),
}


@dataclass(frozen=True)
class Word:
    """The parts of a word that names a model."""

    model: str
    """A type of transformers, or the path of a file."""
    function: str = ""
    """Of a script."""
    head: str = CAUSAL

    @property
    def is_script(self) -> bool:
        return self.model.endswith(".py")

    @property
    def is_file(self) -> bool:
        return self.model.endswith((".py", ".json"))

    def __str__(self) -> str:
        head = "" if self.head == CAUSAL else self.head
        return ":".join(filter(None, (self.model, self.function, head)))


def parsed(word: str, head: str = CAUSAL) -> Word:
    """Split a word into its parts; ``head`` is the default head."""
    model, *parts = word.split(":")
    function = parts.pop(0) if parts and model.endswith(".py") else ""
    return Word(model, function, ":".join(parts) or head)
