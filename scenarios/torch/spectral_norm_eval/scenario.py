"""nn.utils.spectral_norm divides by a random number until the first training pass.

This affects users who evaluate a model with ``nn.utils.spectral_norm`` before they train it, as
Lightning's sanity check does, or who use a discriminator in ``eval()`` mode from the start. The
weight should have a spectral norm of 1. It has one of 10, 100 or more, with either sign. So an
early evaluation, a baseline or a frozen discriminator says nothing, and nobody is warned. A single
training pass brings the norm near 1, so later evaluations look well.

Root cause: the vectors of the power iteration are drawn at random, and iterated in training passes
only. The weight is divided by the product of these vectors with it, which is then near 0.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import followed, setting

ALLOWED = 1.1
"""Of a spectral norm; fifty iterations bring it below."""

picture = api.bars(
    "The spectral norm of each layer's weight in evaluation",
    "without the bug the norm is 1",
    lambda records: ((f"layer {each['step']}", each["norm"]) for each in records.of("layer")),
    limits={"right": 1.0},
)


def iterated(function: Any) -> api.Edits:
    """Iterate as often as the newer class does when it is made, and some times more."""
    step = "F.normalize(torch.mv({}, {}), dim=0, eps=fn.eps)"
    v, u = step.format("weight_mat.t()", "u"), step.format("weight_mat", "v")
    yield from followed(setting(function, "v"), f"for _ in range(50): v = {v}; u = {u}")


def plan(at: api.Position) -> api.Plan:
    return {"layer": api.Kind({"norm": api.SIZE}, api.each(at.params.layers))}


def run(ctx: api.Context) -> None:
    """Evaluate layers whose weights have a spectral norm."""
    import torch

    p = ctx.params
    torch.manual_seed(ctx.seed)
    for number in api.each(p.layers):
        linear = torch.nn.Linear(p.width, p.width)
        layer = torch.nn.utils.spectral_norm(linear).to(ctx.device)
        rows = torch.randn(4, p.width, device=ctx.device)
        for _ in range(p.passes):
            layer.train()(rows)
        with torch.no_grad():
            layer.eval()(rows)
        ctx.record("layer", number, norm=float(torch.linalg.matrix_norm(layer.weight, 2)))


def detect(records: api.Records) -> api.Finding | None:
    """The weights of layers have a spectral norm far from 1."""
    norms = [layer["norm"] for layer in records.of("layer")]
    wrong = [norm for norm in norms if not 1 / ALLOWED < norm < ALLOWED]
    if not wrong:
        return None
    text = f"the weights of {len(wrong)} of {len(norms)} layers have a spectral norm of up to "
    return api.Finding(f"{text}{max(norms):.3g} instead of 1", magnitude=max(norms))
