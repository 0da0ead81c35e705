"""What megatron-core's releases need on a box without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.spec import Lane, Point


def _eager_compile(count: Callable[[], None]) -> None:
    import torch

    def compile(model: Any = None, **options: Any) -> Any:
        count()
        return (lambda function: function) if model is None else model

    torch.compile = compile  # type: ignore[assignment]


POINTS = (
    Point(
        "megatron-core.eager_compile", "megatron-core", ">=0.5", (Lane.CPU,),
        "its functions under torch.compile run as written: loading the compiler takes each rank "
        "longer than the whole training",
        _eager_compile,
    ),
)  # fmt: skip
