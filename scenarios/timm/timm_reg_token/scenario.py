"""With layer decay, the register tokens of a timm ViT train at the full learning rate, and decay.

This affected fine-tunings of timm's vision transformers with register tokens, such as DINOv3's,
with ``layer_decay``, the usual way to fine-tune them. The first parameters of a model should learn
most slowly: in a model of 12 blocks and a decay of 0.75, the class token learns at 0.024 of the
rate. The register tokens beside it learn at the whole rate, 42 times too fast. They also decay as
weights do, with and without layer decay, though tokens should not. The loss falls, and the groups
are printed nowhere.

Root cause: the lists of the parameters at the beginning of the model, and of those without weight
decay, name ``cls_token`` and ``pos_embed``. ``reg_token`` is missing, and what no list names counts
as a part of the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from harness.bugs import api

DEPTH = 2
"""Blocks of the model."""
REGISTERS, HEAD = "reg_token", "head.weight"
TOKENS = ("cls_token", "pos_embed", REGISTERS)
SHARE = 1e-4
"""The largest difference from rounding, as a fraction."""


def plan(at: api.Position) -> api.Plan:
    """Of each step: the rate and the weight decay that moved each parameter, and the loss."""
    facts = {"rates": api.by_name(api.SIZE), "decays": api.by_name(api.NUMBER), "loss": api.SIZE}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a ViT with timm's optimizer and schedule; find the rates from how the weights moved."""
    import torch
    from timm.models.vision_transformer import VisionTransformer
    from timm.optim import create_optimizer_v2
    from timm.scheduler import CosineLRScheduler

    p = ctx.params
    torch.manual_seed(ctx.seed)
    size = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "num_classes": 3}
    model = VisionTransformer(**size, depth=DEPTH, reg_tokens=2).to(ctx.device, torch.float64)
    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        torch.nn.init.normal_(parameter, std=0.1)  # as after a training: nothing is zero
    optimizer = create_optimizer_v2(
        model,
        opt="momentum",
        lr=p.lr,
        momentum=0,
        weight_decay=p.weight_decay,
        layer_decay=p.layer_decay,
    )
    schedule = CosineLRScheduler(optimizer, t_initial=2 * p.steps, t_in_epochs=False)
    images = torch.randn(8, 3, 8, 8).to(ctx.device, torch.float64)
    labels = torch.arange(8, device=ctx.device) % 3
    for step in api.each(p.steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        before = {name: value.detach().clone() for name, value in parameters.items()}
        optimizer.step()
        moves = {name: _move(before[name], value) for name, value in parameters.items()}
        ctx.record(
            "step",
            step,
            rates={name: rate for name, (rate, _) in moves.items()},
            decays={name: decay for name, (_, decay) in moves.items()},
            loss=float(loss.detach()),
        )
        schedule.step_update(step)


def _move(before: Any, parameter: Any) -> tuple[float, float]:
    """The rate and the weight decay with which SGD moved a parameter."""
    import torch

    parts = torch.stack([parameter.grad.flatten(), before.flatten()], 1)
    difference = (before - parameter.detach()).flatten()[:, None]
    rate, decay = torch.linalg.lstsq(parts, difference).solution.flatten().tolist()
    return abs(rate), decay / rate


def scale_of(name: str, layer_decay: float) -> float:
    """The part of the head's rate that a parameter should have; the norm is of the last block."""
    part, *others = name.split(".")
    layers = {**dict.fromkeys((*TOKENS, "patch_embed"), 0), "norm": DEPTH, "head": DEPTH + 1}
    layer = 1 + int(others[0]) if part == "blocks" else layers[part]
    return float(layer_decay ** (DEPTH + 1 - layer))


def decay_of(name: str, weight_decay: float) -> float:
    """The weight decay that a parameter should have: tokens, biases and norms have none."""
    is_flat = name.endswith("bias") or "norm" in name
    return 0.0 if is_flat or name in TOKENS else weight_decay


def wrong_moves(step: api.Record, params: Any) -> Mapping[str, tuple[float, float]]:
    """The parameters that moved with a wrong rate or weight decay: the two that they had."""
    moves = {
        name: (rate / step["rates"][HEAD], step["decays"][name])
        for name, rate in step["rates"].items()
    }
    return {
        name: (scale, decay)
        for name, (scale, decay) in moves.items()
        if not api.near(scale, scale_of(name, params.layer_decay), share=SHARE)
        or not api.near(decay, decay_of(name, params.weight_decay), share=SHARE, within=1e-6)
    }


def detect(records: api.Records) -> api.Finding | None:
    """In every step, the register tokens alone move with the rate and the weight decay of the
    head's weight."""
    p, steps = records.params, records.of("step")
    wrong_by_step = {step["step"]: moves for step in steps if (moves := wrong_moves(step, p))}
    if not wrong_by_step:
        return None
    names = sorted({name for moves in wrong_by_step.values() for name in moves})
    first, moves = next(iter(wrong_by_step.items()))
    name, (scale, decay) = next(iter(moves.items()))
    right = scale_of(name, p.layer_decay)
    as_head = all(
        api.near(scale, 1.0, share=SHARE)
        and api.near(decay, p.weight_decay, share=SHARE, within=1e-6)
        for moves in wrong_by_step.values()
        for scale, decay in moves.values()
    )
    return api.Finding(
        f"{name} learns at {scale:.4g} of the head's rate, and {right:.4g} is right; its weight "
        f"decay is {abs(decay):.4g}, and {decay_of(name, p.weight_decay):.4g} is right",
        step=first,
        ranks=records.ranks,
        parameters=tuple(names),
        magnitude=scale / right,
        unit="times the right rate",
        documented=names == [REGISTERS] and len(wrong_by_step) == len(steps) and as_head,
    )


def exercised(records: api.Records) -> api.Exercise:
    """A model with register tokens had layer decay or weight decay."""
    p = records.params
    text = f"layer decay {p.layer_decay:g}, weight decay {p.weight_decay:g}"
    return api.Exercise(p.layer_decay < 1 or p.weight_decay > 0, text)


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The loss falls, and the class token is right."""
    steps, p = records.of("step"), records.params
    return {
        "the loss does not fall": steps[-1]["loss"] >= steps[0]["loss"],
        "the class token has a wrong rate": any(
            "cls_token" in wrong_moves(step, p) for step in steps
        ),
    }


def _scales(records: api.Records) -> Iterator[tuple[str, float]]:
    step = records.of("step")[0]
    for name in (*TOKENS, *(f"blocks.{n}.mlp.fc1.weight" for n in range(DEPTH)), HEAD):
        yield name, step["rates"][name] / step["rates"][HEAD]


picture = api.bars(
    "The rate of a parameter, as a part of the head's",
    "with the bug reg_token, which should be like the other tokens, has the rate of the head",
    _scales,
    "rate",
)
