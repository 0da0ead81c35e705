"""The causal language models of transformers, and a small configuration of each.

All but ``names`` need transformers on the path.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.models.sizes import (
    ALWAYS,
    EXCEPTIONS,
    HEADS,
    KINDS,
    LAYERS,
    LEAST_LAYERS,
    SIZES,
    SPECIAL_TOKENS,
    VOCABULARY,
    kinds,
)

LATENT = "qk_rope_head_dim"
"""A setting of models with multi-head latent attention."""


MAPPING = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"


def names(site: Path) -> list[str]:
    """The types of all causal language models, as ``config.json`` calls them, of the transformers
    in a folder. Reads its source, as an import takes seconds; empty if the list is not there."""
    file = site / "transformers" / "models" / "auto" / "modeling_auto.py"
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and MAPPING in map(ast.unparse, node.targets):
            (pairs,) = node.value.args  # type: ignore[attr-defined]
            return sorted({name for name, _ in ast.literal_eval(pairs)})
    return []


def config_class(name: str) -> Any:
    """The class of the configuration of a model."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[name]


def model_class(config: Any) -> Any:
    """The causal language model of a class of configurations. Imports its module."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    found = MODEL_FOR_CAUSAL_LM_MAPPING[config]
    return found[0] if isinstance(found, (tuple, list)) else found


def of_text(config: Any) -> Any:
    """The part of a configuration that its causal language model takes."""
    wanted = getattr(model_class(type(config)), "config_class", None)
    parts = (_value(config, name) for name in getattr(config, "sub_configs", {}))
    return next((part for part in parts if wanted is not None and type(part) is wanted), config)


def small(name: str, given: Mapping[str, Any] | None = None) -> Any:
    """A small configuration of a model, or of ``given``, the content of a user's config.json."""
    return of_text(_small(config_class(name), given or {}))


def _small(cls: Any, given: Mapping[str, Any]) -> Any:
    usual = cls(**given)
    settings = {**given, **_settings(cls, usual)}
    made = cls(**{**settings, **_inner(cls, usual), **EXCEPTIONS.get(cls.model_type, {})})
    made.use_cache = False
    return made


def _settings(cls: Any, usual: Any) -> dict[str, Any]:
    """The settings that make a configuration small."""
    known = _names(cls)
    found = {name: value for name in known if (value := _value(usual, name)) is not None}
    changed = {name: SIZES[name] for name in found if name in SIZES and _is_number(found[name])}
    changed |= {name: SIZES[name] for name in ALWAYS if name in known}
    if LATENT in found:  # keys and values come from one vector, for all heads
        changed["num_key_value_heads"] = HEADS
    changed |= {name: value for name, value in KINDS.items() if name in found}
    changed |= {name: type(value)(0) for name, value in found.items() if _drops(name, value)}
    changed |= _tokens(found)
    changed |= _layers(found)
    return {name: value for name, value in changed.items() if name in known}


def _drops(name: str, value: Any) -> bool:
    """Whether a setting is the probability of a dropout."""
    return isinstance(value, (int, float)) and ("dropout" in name or name.endswith("drop"))


def _names(cls: Any) -> list[str]:
    return list(inspect.signature(cls.__init__).parameters)


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a setting that has no value for all layers together
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _tokens(found: Mapping[str, Any]) -> dict[str, Any]:
    """Special tokens that are in the small vocabulary."""
    return {
        name: token
        for name, token in SPECIAL_TOKENS.items()
        if name in found and (not _is_number(found[name]) or found[name] >= VOCABULARY)
    }


def _layers(found: Mapping[str, Any]) -> dict[str, Any]:
    """The number of layers, and the settings of each, so that each kind occurs."""
    counts = {name: found[name] for name in LAYERS if _is_number(found.get(name))}
    lists = {
        name: value
        for name, value in found.items()
        if isinstance(value, (list, tuple)) and len(value) in counts.values() and len(value) > 1
    }
    if not lists:
        return dict.fromkeys(counts, LEAST_LAYERS)
    chosen = kinds(lists)
    short = {name: [value[at] for at in chosen] for name, value in lists.items()}
    return dict.fromkeys(counts, len(chosen)) | short


def _inner(cls: Any, usual: Any) -> dict[str, Any]:
    """The small configurations within one, such as that of the text of a model for images."""
    return {
        name: _small(type(part), {})
        for name in getattr(cls, "sub_configs", {})
        if (part := _value(usual, name)) is not None
    }
