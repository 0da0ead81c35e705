"""A small LLaMA built under DeepSpeed's zero.Init, and the same model built without it.

The class is transformers' own, configured in code. Its head dimension and its number of positions
are those of the report, whose figures count the elements of these buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]

from harness.bugs import api
from harness.detectors.buffers import buffer_differences
from harness.detectors.replicas import replica_differences
from scenarios.transformers import _plain_llama as plain_llama
from scenarios.transformers import _rope_buffers as buffers

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.bfloat16, "fp16": torch.float16}
"""The model's dtype for each precision of the DeepSpeed config. The report compared with a config
that has neither bf16 nor fp16: DeepSpeed takes that as fp32, whatever the model's dtype is."""


@dataclass(frozen=True)
class Shape:
    """How large the model is."""

    layers: int = 2
    hidden: int = 512
    heads: int = 4
    """128 a head, as in LLaMA-2."""
    inner: int = 1024
    vocabulary: int = 512
    positions: int = 4096
    init: float = 0.06
    """The standard deviation of the weights. LLaMA's 0.02 is for a wider model: in this one it
    makes the logits so small that wrong positions hardly move them."""


def init_distributed(ctx: api.Context) -> None:
    """Open the process group through DeepSpeed; otherwise zero.Init would open one itself."""
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)


def built(
    precision: str, contexts: Iterable[AbstractContextManager[Any]]
) -> tuple[LlamaForCausalLM, dict[str, str]]:
    """The model, built inside these contexts, the outermost first; and the dtypes that constructors
    returned inside them when asked for float32."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        model = build(precision)
        tensors = {
            "arange": torch.arange(3, dtype=torch.float32),
            "ones": torch.ones(3, dtype=torch.float32),
        }
    return model, {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()}


def build(
    precision: str, device: torch.device | str | None = None, shape: Shape | None = None
) -> LlamaForCausalLM:
    """The model in the dtype of its precision; without ``device``, zero.Init chooses the device."""
    where = nullcontext() if device is None else torch.device(device)
    shape = shape or Shape()
    config = LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.positions,
        initializer_range=shape.init,
    )
    with _default_dtype(DTYPES[precision]), where:
        return LlamaForCausalLM(config)


def tiny(precision: str) -> LlamaForCausalLM:
    """A model of one layer, built on the CPU without zero.Init: its buffers are right."""
    return build(precision, "cpu", Shape(layers=1))


def zero_init(precision: str) -> AbstractContextManager[Any]:
    """DeepSpeed's own context for building a model in shards, in one precision."""
    zero = {"stage": 3, "memory_efficient_linear": False}
    settings: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    if precision != "fp32":
        settings[precision] = {"enabled": True}
    return deepspeed.zero.Init(config_dict_or_path=settings)


def compare_buffers(
    ctx: api.Context, model: LlamaForCausalLM, precision: str, casts: Mapping[str, str], **more: Any
) -> None:
    """Record how the buffers differ from those of ``tiny``, for ``buffers``."""
    parameters, reference = list(model.parameters()), tiny(precision)
    ctx.record(
        "buffers",
        lane=ctx.lane,
        precision=precision,
        casts=casts,
        sharded=sum(map(_sharded, parameters)),
        parameters=len(parameters),
        compared={name: list(buffer.shape) for name, buffer in model.named_buffers()},
        differing=buffers.facts(buffer_differences(model, reference)),
        reference_off=plain_llama.buffers_off(reference.named_buffers(), Shape.positions),
        parted=_parted(model, ctx.device),
        **more,
    )


def _sharded(parameter: nn.Parameter) -> bool:
    """Whether zero.Init has taken over a parameter."""
    return hasattr(parameter, "ds_id")


def _parted(model: nn.Module, device: torch.device) -> list[str]:
    """The buffers that differ between ranks: a check that misses this bug."""
    if dist.get_world_size() == 1:
        return []
    pairs = [(n, b.to(device)) for n, b in model.named_buffers() if b.is_floating_point()]
    return [found.name for found in replica_differences(pairs)]


def compare_logits(ctx: api.Context, model: LlamaForCausalLM, length: int) -> None:
    """Give the bf16 model and the references the same weights, check that they have them, and
    record how their logits of one random sequence differ.

    References are built without zero.Init, on the CPU and, if there is one, on the GPU. Their
    frequencies may differ in the last place, and both are right.
    """
    torch.manual_seed(ctx.seed)
    kinds = dict.fromkeys(["cpu", ctx.device.type])
    references = {kind: build("bf16", kind).to(ctx.device) for kind in kinds}
    source = next(iter(references.values()))
    for reference in references.values():
        reference.load_state_dict(source.state_dict())
    _move(model, ctx.device)
    _give(model, source)
    tokens = _tokens(length, ctx.seed).to(ctx.device)
    with _gathered(model), torch.no_grad():
        unequal = {name for each in references.values() for name in _unequal(model, each)}
        theirs = {kind: _logits(each, tokens) for kind, each in references.items()}
        answer = buffers.diverging(_logits(model, tokens), theirs)
        plain = plain_llama.logits(source.state_dict(), tokens, Shape.layers, Shape.heads)
        off = max(plain_llama.logits_off(each, plain) for each in theirs.values())
    ctx.record(
        "logits",
        parameters=len(list(model.parameters())),
        unequal_parameters=sorted(unequal),
        reference_off=off,
        **answer,
    )


def _logits(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=tokens, use_cache=False).logits
    return logits


def _tokens(length: int, seed: int) -> Tensor:
    """One random sequence ``[1, length]``, the same on every rank and device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(Shape.vocabulary, (1, length), generator=generator)


def _move(model: nn.Module, device: torch.device) -> None:
    """Move a model to ``device``; of a sharded model, only its buffers: zero.Init owns the rest."""
    if not any(map(_sharded, model.parameters())):
        model.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _gathered(model: nn.Module, modifier: int | None = None) -> AbstractContextManager[Any]:
    parameters = list(filter(_sharded, model.parameters()))
    return deepspeed.zero.GatheredParameters(
        parameters, modifier_rank=modifier, enabled=bool(parameters)
    )


def _give(model: nn.Module, reference: nn.Module) -> None:
    source: Mapping[str, Tensor] = dict(reference.named_parameters())
    with _gathered(model, modifier=0), torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(source[name])


def _unequal(model: nn.Module, reference: nn.Module) -> list[str]:
    theirs = dict(reference.named_parameters())
    return [n for n, p in model.named_parameters() if not torch.equal(p, theirs[n])]
