"""How each subject is made: an architecture of transformers, a config.json, or a user's function.

A subject is named by a word: ``llama``, the path of a ``config.json``, or ``FILE.py:FUNCTION``.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from harness.models import architectures
from harness.models.sizes import TOKENS
from harness.models.subject import Make, Subject, seed

ROWS = 4
FIRST, LAST = 8, 100
"""Token ids are drawn between these: no special ones."""

MOVED = 0.1
"""The standard deviation by which weights are moved: as they are initialized, zeros and ones would
hide faults."""


def prepare(word: str) -> None:
    """Import what a subject needs, so that forked processes have it. Raises what that raises."""
    if not _is_file(word):
        architectures.model_class(architectures.config_class(word))


def subject(word: str, folder: Path) -> Subject:
    """The subject that a word names, with a folder for its checkpoints."""
    if ".py:" in word:
        return Subject(word, _users(word), folder)
    return Subject(word, lambda: _made(word), folder, lambda: _constructed(word))


def _is_file(word: str) -> bool:
    return ".py:" in word or word.endswith(".json")


def _config(word: str) -> Any:
    if not _is_file(word):
        return architectures.small(word)
    given = json.loads(Path(word).read_text(encoding="utf-8"))
    return architectures.small(given.pop("model_type"), given)


def _constructed(word: str) -> Any:
    config = _config(word)
    name = word if not _is_file(word) else config.model_type
    return architectures.model_class(architectures.config_class(name))(config)


def _made(word: str) -> tuple[Any, dict[str, Any]]:
    """A model with moved weights, and a batch. The last rows repeat one token, so that few experts
    of a mixture get any."""
    import torch

    module = _constructed(word)
    seed()
    with torch.no_grad():
        for p in module.parameters():
            if p.is_floating_point():
                p.add_(torch.randn_like(p) * MOVED)
    tokens = torch.randint(FIRST, LAST, (ROWS, TOKENS))
    tokens[ROWS // 2 :] = tokens[ROWS // 2 :, :1]
    return module, {"input_ids": tokens, "labels": tokens.clone()}


def _users(word: str) -> Make:
    """The user's function; raises what its file raises."""
    path, _, function = word.rpartition(":")
    name = Path(path).stem
    sys.path.insert(0, str(Path(path).resolve().parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    make: Make = getattr(module, function)
    return make
