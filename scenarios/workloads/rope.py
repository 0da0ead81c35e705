"""A small LLaMA built under DeepSpeed's zero.Init, and the same one built outside of it.

The class is transformers' own, configured in code. Its head dimension and its number of positions
are those of the report, since its figures count the elements of these buffers.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM  # type: ignore[import-not-found]

from harness.detectors.buffers import Difference, buffer_differences, difference
from harness.detectors.replicas import replica_differences

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.bfloat16, "fp16": torch.float16}
"""The model's dtype under each precision of the DeepSpeed config. A config without bf16 and fp16
means fp32 to DeepSpeed, whatever the model is: that was the report's comparison."""


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
    """The standard deviation of the weights. LLaMA's 0.02 is for a wider model: here it makes
    logits so small that the wrong positions hardly move them."""


def init_distributed(backend: str) -> None:
    """Open the process group through DeepSpeed, which zero.Init would do for itself otherwise."""
    deepspeed.init_distributed(dist_backend=backend)


def config(shape: Shape) -> LlamaConfig:
    return LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
        vocab_size=shape.vocabulary,
        max_position_embeddings=shape.positions,
        initializer_range=shape.init,
    )


def build(
    shape: Shape, precision: str, device: torch.device | str | None = None
) -> LlamaForCausalLM:
    """The model, under its own default dtype; without ``device``, zero.Init chooses one."""
    where = nullcontext() if device is None else torch.device(device)
    with _default_dtype(DTYPES[precision]), where:
        return LlamaForCausalLM(config(shape))


def zero_init(precision: str) -> AbstractContextManager[Any]:
    """DeepSpeed's own context for building a model in shards, of one precision."""
    zero = {"stage": 3, "memory_efficient_linear": False}
    settings: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    if precision != "fp32":
        settings[precision] = {"enabled": True}
    return deepspeed.zero.Init(config_dict_or_path=settings)


def casts() -> dict[str, str]:
    """What has become, just now, of the dtype that a constructor was asked for: float32."""
    made = {
        "arange": torch.arange(3, dtype=torch.float32),
        "ones": torch.ones(3, dtype=torch.float32),
    }
    return {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in made.items()}


def sharded(model: nn.Module) -> tuple[int, int]:
    """How many parameters zero.Init has taken over, and how many there are."""
    parameters = list(model.parameters())
    return sum(hasattr(parameter, "ds_id") for parameter in parameters), len(parameters)


def differing(model: nn.Module, reference: nn.Module) -> list[dict[str, Any]]:
    """The buffers that are not the reference's, as facts to record."""
    return [facts(found) for found in buffer_differences(model, reference)]


def turned(
    model: LlamaForCausalLM, reference: LlamaForCausalLM, device: torch.device
) -> list[dict[str, Any]]:
    """How the cosines and sines differ that the rotary embeddings of transformers 5 give out, for
    every position; ``reference`` lies on the CPU."""
    answers = []
    for each, where in ((model, device), (reference, torch.device("cpu"))):
        positions = torch.arange(each.config.max_position_embeddings, device=where)[None]
        like = torch.empty(0, dtype=torch.bfloat16, device=where)
        answers.append([t[0] for t in each.model.rotary_emb(like, positions)])
    named = zip(("cos", "sin"), *answers, strict=True)
    differences = [difference(name, ours, theirs) for name, ours, theirs in named]
    return [facts(found) for found in differences if found is not None]


def facts(found: Difference) -> dict[str, Any]:
    """A difference as JSON values."""
    told = dataclasses.asdict(found)
    return {k: str(v) if isinstance(v, torch.dtype) else v for k, v in told.items()}


def parted(model: nn.Module, device: torch.device) -> list[str]:
    """The buffers that differ between ranks: a check that this bug passes."""
    if dist.get_world_size() == 1:
        return []
    named = [(n, b.to(device)) for n, b in model.named_buffers() if b.is_floating_point()]
    return [found.name for found in replica_differences(named)]


def references(shape: Shape, precision: str, device: torch.device) -> dict[str, LlamaForCausalLM]:
    """Models of the same weights on ``device``, built plainly: on the CPU, and where there is one
    on the GPU. Their frequencies may be an ulp apart, and either is right."""
    built = {kind: build(shape, precision, kind) for kind in dict.fromkeys(["cpu", device.type])}
    first = next(iter(built.values())).to(device)
    for other in built.values():
        other.to(device).load_state_dict(first.state_dict())
    return built


def logits(
    model: LlamaForCausalLM, references: Mapping[str, LlamaForCausalLM], tokens: Tensor
) -> dict[str, Any]:
    """Give all the same weights, see that they have, and compare what they answer to ``tokens``.

    Compared is with the reference that agrees for longest. ``first`` is the first position, from
    0, at which any logit differs, or None; ``after`` counts the positions from there on, and
    ``differing`` those of them that differ.
    """
    _move(model, tokens.device)
    _give(model, next(iter(references.values())))
    with _gathered(model), torch.no_grad():
        unequal = sorted({name for each in references.values() for name in _unequal(model, each)})
        ours = model(input_ids=tokens, use_cache=False).logits
        distances = {
            kind: (ours - reference(input_ids=tokens, use_cache=False).logits)
            .abs().float().amax(dim=(0, 2)).cpu()
            for kind, reference in references.items()
        }  # fmt: skip
    length = tokens.shape[1]
    best = max(distances, key=lambda kind: _agreeing(distances[kind]))
    first, distance = _first(distances[best]), distances[best]
    return {
        "tokens": length,
        "parameters": len(list(model.parameters())),
        "unequal_parameters": unequal,
        "reference": best,
        "first": first,
        "after": 0 if first is None else length - first,
        "differing": int(distance.count_nonzero()),
        "greatest": {str(n): float(distance[:n].max()) for n in _lengths(length)},
    }


def _first(distance: Tensor) -> int | None:
    positions = distance.nonzero()
    return int(positions[0]) if len(positions) else None


def _agreeing(distance: Tensor) -> int:
    first = _first(distance)
    return len(distance) if first is None else first


def _move(model: nn.Module, device: torch.device) -> None:
    """All to ``device``; of a sharded model its buffers alone, for zero.Init has its shards."""
    if not any(sharded(model)[:1]):
        model.to(device)
    for module in model.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)


def tokens(shape: Shape, length: int, seed: int, device: torch.device) -> Tensor:
    """One random sequence ``[1, length]``, the same on every rank and device."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.vocabulary, (1, length), generator=generator).to(device)


@contextmanager
def unwrapped_arange(kind: type[nn.Module]) -> Iterator[None]:
    """The thread's remedy: the constructor of ``kind`` gets torch's own arange for its duration.

    Entered before zero.Init, which wraps the constructors that it finds.
    """
    from deepspeed.runtime.zero import partition_parameters

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


def copy_buffers(model: LlamaForCausalLM, tiny: LlamaForCausalLM) -> None:
    """The thread's remedy: overwrite every layer's buffers with those of a small healthy model."""
    healthy = dict(tiny.model.layers[0].named_buffers())
    for layer in model.model.layers:
        for name, buffer in layer.named_buffers():
            buffer.copy_(healthy[name])


def load_buffers(model: nn.Module, healthy: nn.Module) -> list[str]:
    """The thread's remedy: make the buffers persistent, so that a checkpoint carries them.

    Saves those of a healthy model and loads them. Returns the names of what was saved.
    """
    for each in (model, healthy):
        for module in each.modules():
            module._non_persistent_buffers_set.clear()
    names = {name for name, _ in healthy.named_buffers()}
    saved = {name: value for name, value in healthy.state_dict().items() if name in names}
    model.load_state_dict(saved, strict=False)
    return sorted(saved)


def _lengths(longest: int) -> list[int]:
    return [length for length in (257, 258, 300, 1024, longest) if length <= longest]


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _gathered(model: nn.Module, modifier: int | None = None) -> AbstractContextManager[Any]:
    parameters = [p for p in model.parameters() if hasattr(p, "ds_id")]
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
