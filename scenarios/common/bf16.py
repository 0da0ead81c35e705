"""The config that makes any DeepSpeed release choose BF16_Optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version


def config(pins: Mapping[str, str]) -> dict[str, Any]:
    """The part of DeepSpeed's config that selects bf16 weights under BF16_Optimizer."""
    config: dict[str, Any] = {"bf16": {"enabled": True}}
    if Version(pins["deepspeed"]) >= Version("0.11"):
        # Older releases choose BF16_Optimizer by bf16 alone; these options would select another.
        config |= {"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}
    return config
