"""The models of transformers with each head, and a small configuration of each.

All but ``names`` need transformers on the path.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.rank.models import heads
from harness.rank.models.heads import CAUSAL, Labels
from harness.rank.models.sizes import (
    ALWAYS,
    CAUSAL_EXCEPTIONS,
    CAUSAL_KINDS,
    EXCEPTIONS,
    HEADS,
    INNER,
    KINDS,
    LABELS,
    LAYERS,
    LEAST_LAYERS,
    OF_IMAGES,
    SIZES,
    SPECIAL_TOKENS,
    VOCABULARY,
    kinds,
)

BEGIN = "decoder_start_token_id"

LATENT = "qk_rope_head_dim"
"""A setting of models with multi-head latent attention."""


def names(site: Path, head: str = CAUSAL) -> list[str]:
    """The types of all models with a head in the transformers of a folder, as ``config.json`` calls
    them. Reads the source, as an import takes seconds. Empty if transformers has no such list."""
    file = site / "transformers" / "models" / "auto" / "modeling_auto.py"
    mapping = f"{heads.HEADS[head].mapping}_NAMES"
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and mapping in map(ast.unparse, node.targets):
            (pairs,) = node.value.args  # type: ignore[attr-defined]
            return sorted({name for name, _ in ast.literal_eval(pairs)})
    return []


def config_class(name: str) -> Any:
    """The class of the configuration of a model."""
    from transformers import CONFIG_MAPPING

    return CONFIG_MAPPING[name]


def model_class(config: Any, head: str = CAUSAL) -> Any:
    """The class of a configuration's model with a head. Imports its module."""
    import transformers

    entry = getattr(transformers, heads.HEADS[head].mapping)[config]
    return entry[0] if isinstance(entry, (tuple, list)) else entry


def of_head(config: Any, head: str = CAUSAL) -> Any:
    """The part of a configuration that the model with this head takes."""
    expected = getattr(model_class(type(config), head), "config_class", None)
    parts = (_value(config, name) for name in getattr(config, "sub_configs", {}))
    return next((part for part in parts if expected is not None and type(part) is expected), config)


def small(name: str, content: Mapping[str, Any] | None = None, head: str = CAUSAL) -> Any:
    """A small configuration of a model, or of the ``content`` of a user's config.json."""
    config = of_head(_small(config_class(name), content or {}, head), head)
    if heads.HEADS[head].classes:
        config.num_labels = LABELS
    parts = [_value(config, name) for name in getattr(config, "sub_configs", {})]
    # Without a padding token, a decoder's head for rows refuses several rows.
    for part in filter(None, (config, *parts)) if heads.HEADS[head].labels is Labels.ROW else ():
        if _value(part, "pad_token_id") is None:
            part.pad_token_id = SPECIAL_TOKENS["pad_token_id"]
    if _value(config, "is_encoder_decoder") and _value(config, BEGIN) is None:
        setattr(config, BEGIN, SPECIAL_TOKENS[BEGIN])  # checkpoints have it, T5's class does not
    return config


def _small(cls: Any, overrides: Mapping[str, Any], head: str) -> Any:
    usual = cls(**overrides)
    inner = INNER.get(cls.model_type, {})
    parts = {  # nested configurations, such as a vision model's text configuration
        name: _small(type(part), inner.get(name, {}), head)
        for name in getattr(cls, "sub_configs", {})
        if (part := _value(usual, name)) is not None
    }
    causal = CAUSAL_EXCEPTIONS.get(cls.model_type, {}) if head == CAUSAL else {}
    config = cls(
        **{
            **overrides,
            **_settings(cls, usual, head),
            **parts,
            **EXCEPTIONS.get(cls.model_type, {}),
            **causal,
        }
    )
    config.use_cache = False
    return config


def _settings(cls: Any, usual: Any, head: str) -> dict[str, Any]:
    """The settings that make a configuration small."""
    arguments = list(inspect.signature(cls.__init__).parameters)
    values = {name: value for name in arguments if (value := _value(usual, name)) is not None}
    changed = {name: SIZES[name] for name in values if name in SIZES and _is_number(values[name])}
    changed |= {name: SIZES[name] for name in ALWAYS if name in arguments}
    if heads.HEADS[head].pixels:
        changed |= _of_images(values)
    if LATENT in values:  # keys and values come from one vector, for all heads
        changed["num_key_value_heads"] = HEADS
    chosen = {**KINDS, **CAUSAL_KINDS} if head == CAUSAL else KINDS
    changed |= {name: value for name, value in chosen.items() if name in values}
    changed |= {name: type(value)(0) for name, value in values.items() if _drops(name, value)}
    changed |= {  # those that are outside of the small vocabulary
        name: token
        for name, token in SPECIAL_TOKENS.items()
        if name in values and (not _is_number(values[name]) or values[name] >= VOCABULARY)
    }
    changed |= _layers(values)
    return {name: value for name, value in changed.items() if name in arguments}


def _of_images(values: Mapping[str, Any]) -> dict[str, Any]:
    """The sizes of a model for images: numbers, and lists with a number for each stage."""
    changed: dict[str, Any] = {}
    for name in OF_IMAGES.keys() & values.keys():
        value = values[name]
        if _is_number(value):
            changed[name] = OF_IMAGES[name]
        elif isinstance(value, (list, tuple)) and all(map(_is_number, value)):
            changed[name] = [OF_IMAGES[name]] * len(value)
    return changed


def _drops(name: str, value: Any) -> bool:
    """Whether a setting is the probability of a dropout."""
    words = "dropout" in name or name.endswith("drop") or name.startswith("drop_path")
    return isinstance(value, (int, float)) and words


def _value(config: Any, name: str) -> Any:
    try:
        return getattr(config, name, None)
    except Exception:  # a setting that has no value for all layers together
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _layers(values: Mapping[str, Any]) -> dict[str, Any]:
    """The number of layers and the settings of each layer, so that each kind occurs."""
    counts = {name: values[name] for name in LAYERS if _is_number(values.get(name))}
    lists = {
        name: value
        for name, value in values.items()
        if isinstance(value, (list, tuple)) and len(value) in counts.values() and len(value) > 1
    }
    if not lists:
        return dict.fromkeys(counts, LEAST_LAYERS)
    chosen = kinds(lists)
    short = {name: [value[at] for at in chosen] for name, value in lists.items()}
    return dict.fromkeys(counts, len(chosen)) | short
