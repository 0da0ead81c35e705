"""LLaMA in plain torch: what a release's own model must compute when it is built without zero.Init.

A release's model is a valid reference only if it is a LLaMA. Imports torch: import it inside
``run``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

BASE, DIMENSIONS, EPSILON = 10000.0, 128, 1e-6
"""LLaMA's defaults: the base of the frequencies, the dimensions of a head, the norms' epsilon."""


def _angles(positions: int) -> Tensor:
    """The angle by which each position turns each dimension, [positions, 128], in fp64."""
    frequencies = BASE ** (-torch.arange(0, DIMENSIONS, 2, device="cpu").double() / DIMENSIONS)
    turned = torch.outer(torch.arange(positions, device="cpu").double(), frequencies)
    return torch.cat((turned, turned), dim=-1)


def buffers_off(buffers: Iterable[tuple[str, Tensor]], positions: int) -> dict[str, float]:
    """How far rotary buffers are from plain torch's: the greatest difference of cosines and sines,
    and for frequencies the angle (radians) at the last position. Other buffers are left out."""
    angles = _angles(positions)
    last_angles = angles[-1, : DIMENSIONS // 2]
    kinds = {"inv_freq": last_angles, "cos": angles.cos(), "sin": angles.sin()}
    distances = {}
    for name, buffer in buffers:
        kind = name.rpartition(".")[2].removeprefix("original_").strip("_").removesuffix("_cached")
        if kind in kinds:
            value = buffer.detach().cpu().double() * (positions - 1 if kind == "inv_freq" else 1)
            distances[name] = float((value.reshape(kinds[kind].shape) - kinds[kind]).abs().max())
    return distances


def logits(weights: Mapping[str, Tensor], tokens: Tensor, layers: int, heads: int) -> Tensor:
    """The logits [1, positions, vocabulary] of tokens [1, positions], in fp32; ``weights`` have the
    names of transformers."""
    fp32_weights = {name: weight.float() for name, weight in weights.items()}
    angles = _angles(tokens.shape[1]).float().to(tokens.device)
    x = fp32_weights["model.embed_tokens.weight"][tokens]
    for number in range(layers):
        start = f"model.layers.{number}."
        layer = {n.removeprefix(start): w for n, w in fp32_weights.items() if n.startswith(start)}
        x = x + _attended(layer, _norm(x, layer["input_layernorm.weight"]), angles, heads)
        h = _norm(x, layer["post_attention_layernorm.weight"])
        inner = F.silu(h @ layer["mlp.gate_proj.weight"].T) * (h @ layer["mlp.up_proj.weight"].T)
        x = x + inner @ layer["mlp.down_proj.weight"].T
    return _norm(x, fp32_weights["model.norm.weight"]) @ fp32_weights["lm_head.weight"].T


def _attended(layer: Mapping[str, Tensor], x: Tensor, angles: Tensor, heads: int) -> Tensor:
    q, k, v = (
        (x @ layer[f"self_attn.{name}_proj.weight"].T).unflatten(-1, (heads, -1)).transpose(1, 2)
        for name in "qkv"
    )
    mixed = F.scaled_dot_product_attention(
        _turned(q, angles), _turned(k, angles), v, is_causal=True
    )
    return mixed.transpose(1, 2).flatten(-2) @ layer["self_attn.o_proj.weight"].T


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    """Turn each dimension and the one half a head further on by their angle."""
    front, back = x.chunk(2, dim=-1)
    return x * angles.cos() + torch.cat((-back, front), dim=-1) * angles.sin()


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def logits_off(actual: Tensor, plain: Tensor) -> float:
    """The distance of logits from plain torch's, as a fraction."""
    return float((actual.float() - plain).norm() / plain.norm())
