"""The releases and settings of this run, and the bugs of the catalogue that they set off."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
import torch.distributed as dist

from .posts import Post

PACKAGES = (
    "torch",
    "transformers",
    "accelerate",
    "deepspeed",
    "lightning",
    "pytorch_lightning",
    "peft",
    "trl",
    "datasets",
    "ignite",
    "torchdata",
    "torchmetrics",
    "sentence_transformers",
    "webdataset",
    "litdata",
    "keras",
)
"""Modules with ``__version__`` that a training may import."""


def releases() -> dict[str, str]:
    """The release of each package that this process has imported, without a local part."""
    versions = {name: getattr(sys.modules.get(name), "__version__", "") for name in PACKAGES}
    return {name: str(text).split("+")[0] for name, text in versions.items() if text}


def settings_of(post: Post, backwards: int, scaler: Any) -> dict[str, Any]:
    """The settings that decide whether a bug occurs, under the catalogue's names for them."""
    is_up = dist.is_available() and dist.is_initialized()
    types = {described.dtype for described in post.described}
    scaled = scaler is not None and scaler.is_enabled()
    precision = "bf16" if "bfloat16" in types else "fp16" if scaled else "fp32"
    return {
        "ranks": dist.get_world_size() if is_up else 1,
        "gradient_accumulation_steps": max(1, backwards),
        "precision": precision,
        "trainer": _is_called_by("transformers.trainer"),
        "optimizer": post.kind,
        "gpu": torch.cuda.is_available() and torch.cuda.is_initialized(),
    }


def _is_called_by(module: str) -> bool:
    """Whether code of a module runs this step: that it is imported says little."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != module:
        frame = frame.f_back
    return frame is not None


def known_bugs(file: str, facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The bugs in a file whose release and whose settings this run has."""
    if not file:
        return []
    with open(file, encoding="utf-8") as content:
        bugs = json.load(content)
    return [bug for bug in bugs if _occurs(bug, facts["releases"], facts["settings"])]


def _occurs(bug: dict[str, Any], versions: dict[str, str], settings: dict[str, Any]) -> bool:
    is_affected = all(versions.get(name) in those for name, those in bug["affected"].items())
    return is_affected and all(
        name in settings and _fits(settings[name], rule) for name, rule in bug["settings"].items()
    )


def _fits(value: Any, rule: dict[str, Any]) -> bool:
    if "above" in rule:
        return bool(value > rule["above"])
    return value in rule.get("in", ())
