"""The remedies of the report.

Imports torch, transformers and DeepSpeed: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from deepspeed.runtime.zero import partition_parameters
from torch import nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding  # type: ignore[import-not-found]


@contextmanager
def unwrapped_arange() -> Iterator[None]:
    """The rotary embedding's constructor gets torch's own arange.

    Enter it before zero.Init, which wraps the constructors that it finds.
    """
    kind = LlamaRotaryEmbedding
    constructor = kind.__init__

    def construct(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        wrapped = torch.arange
        torch.arange = partition_parameters._orig_torch_arange
        try:
            constructor(self, *args, **kwargs)
        finally:
            torch.arange = wrapped

    construct.__signature__ = inspect.signature(constructor)  # type: ignore[attr-defined]
    kind.__init__ = construct  # type: ignore[assignment]
    try:
        yield
    finally:
        kind.__init__ = constructor  # type: ignore[method-assign]


def copy_buffers(model: LlamaForCausalLM, healthy_model: LlamaForCausalLM) -> None:
    """Overwrite every layer's buffers with those of a small model."""
    healthy = dict(healthy_model.model.layers[0].named_buffers())
    for layer in model.model.layers:
        for name, buffer in layer.named_buffers():
            buffer.copy_(healthy[name])


def load_buffers(model: nn.Module, healthy: nn.Module) -> list[str]:
    """Make the buffers persistent, so that checkpoints contain them.

    Saves the buffers of a healthy model and loads them into ``model``. Returns their names.
    """
    for root in (model, healthy):
        for module in root.modules():
            module._non_persistent_buffers_set.clear()
    names = {name for name, _ in healthy.named_buffers()}
    saved = {name: value for name, value in healthy.state_dict().items() if name in names}
    model.load_state_dict(saved, strict=False)
    return sorted(saved)
