"""What makes a DeepSpeed release choose BF16_Optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.version import Version


def config(pins: Mapping[str, str]) -> dict[str, Any]:
    """The part of DeepSpeed's config that asks for bf16 weights under BF16_Optimizer."""
    asked: dict[str, Any] = {"bf16": {"enabled": True}}
    if Version(pins["deepspeed"]) >= Version("0.11"):
        # Before, bf16 alone chose BF16_Optimizer, and these would choose another one.
        asked |= {"zero_optimization": {"stage": 1}, "data_types": {"grad_accum_dtype": "fp32"}}
    return asked
