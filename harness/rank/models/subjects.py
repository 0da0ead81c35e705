"""Constructs each subject from an architecture of transformers, a config.json or a user's function.

``heads`` explains the words that name a subject.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import torch

from harness.rank.models import architectures
from harness.rank.models.answer import NoAnswer
from harness.rank.models.heads import HEADS, Head, Labels, Word, parsed
from harness.rank.models.sizes import FIRST, IMAGE, LABELS, LAST, SPECIAL_TOKENS, TARGETS, TOKENS
from harness.rank.models.subject import DECODER, Make, Subject, seed

ROWS = 4
MOVED = 0.1
"""The standard deviation by which weights are moved: initial weights contain zeros and ones, which
hide faults."""


def prepare(word: str) -> None:
    """Import what a subject needs, so that forked processes have it. Raises what imports raise."""
    name = parsed(word)
    if not name.is_file:
        architectures.model_class(architectures.config_class(name.model), name.head)


def subject(word: str, folder: Path) -> Subject:
    """The subject that a word names, with a folder for its checkpoints."""
    name = parsed(word)
    head = HEADS[name.head]
    if name.is_script:
        return Subject(word, _users(name), folder, head=head)
    return Subject(word, lambda: _model_and_batch(name), folder, lambda: _constructed(name), head)


def _constructed(name: Word) -> Any:
    if name.is_file:
        content = json.loads(Path(name.model).read_text(encoding="utf-8"))
        config = architectures.small(content.pop("model_type"), content, name.head)
        kind = config.model_type
    else:
        config, kind = architectures.small(name.model, head=name.head), name.model
    return architectures.model_class(architectures.config_class(kind), name.head)(config)


def _model_and_batch(name: Word) -> tuple[Any, dict[str, Any]]:
    """A model with moved weights, and a batch."""
    module = _constructed(name)
    seed()
    with torch.no_grad():
        for p in module.parameters():
            if p.is_floating_point() and p.requires_grad:  # others, such as sines, are not saved
                p.add_(torch.randn_like(p) * MOVED)
    return module, _batch(HEADS[name.head], module.config)


def _batch(head: Head, config: Any) -> dict[str, Any]:
    """The inputs of a model with a head."""
    if head.pixels:
        size = getattr(config, "image_size", None) or IMAGE
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(config, "num_channels", None) or 3
        images = torch.randn(ROWS, channels, height, width)
        return {"pixel_values": images, "labels": torch.arange(ROWS) % LABELS}
    tokens = torch.randint(FIRST, LAST, (ROWS, TOKENS))
    tokens[ROWS // 2 :] = tokens[ROWS // 2 :, :1]  # one in a row, so that some experts get none
    if head.labels is Labels.ROW:
        tokens[:, -1] = _token(config, "eos_token_id")  # some heads look for it
        return {"input_ids": tokens, "labels": torch.arange(ROWS) % LABELS}
    if head.classes:
        return {"input_ids": tokens, "labels": tokens % LABELS}
    if head.labels is Labels.TOKEN and getattr(config, "is_encoder_decoder", False):
        targets = torch.randint(FIRST, LAST, (ROWS, TARGETS))
        begin = torch.full((ROWS, 1), _token(config, "decoder_start_token_id"))
        decoder_tokens = torch.cat([begin, targets[:, :-1]], 1)
        return {"input_ids": tokens, DECODER: decoder_tokens, "labels": targets}
    if head.decoder:
        raise NoAnswer("it has no encoder for tokens")
    return {"input_ids": tokens, "labels": tokens.clone()}


def _token(config: Any, name: str) -> int:
    """A special token of a configuration; the first one if there are several."""
    token = getattr(config, name, None)
    if isinstance(token, (list, tuple)):
        token = token[0] if token else None
    return token if isinstance(token, int) else SPECIAL_TOKENS[name]


def _users(name: Word) -> Make:
    """The user's function. Raises what its file raises."""
    path = name.model
    stem = Path(path).stem
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[stem] = module
    spec.loader.exec_module(module)
    make: Make = getattr(module, name.function)
    return make
