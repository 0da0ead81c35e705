"""Opacus' ghost clipping takes the gradient of a bias for too small, and clips too little.

This affected private trainings with ``grad_sample_mode="ghost"`` of models with linear layers over
sequences, so of all transformers. The gradient of each row must be clipped to ``max_grad_norm``:
the noise is chosen for this norm, and the privacy that Opacus reports follows from the two. With
the bug rows with a large gradient of the bias are clipped to more than that norm. Their gradients
are too long, and the training is less private than it reports.

Root cause: the gradient of a bias is the sum over the tokens. Its squared norm is the sum of all
products of two tokens' gradients. ``compute_linear_norm_sample`` added the squares of these
products, as it must for the weight, whose products have a second factor. Since 1.5.4 it adds the
products.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import features

CLASSES, WIDTH = 3, 4


oracle = features.Feature(
    "exactly that follows if the bias counts with the squares of its tokens' products"
)


def run(ctx: api.Context) -> None:
    """Train a classifier of sequences with ghost clipping; per-row gradients are the reference."""
    import torch
    from torch.nn.functional import cross_entropy

    p = ctx.params
    torch.manual_seed(ctx.seed)
    ghost, optimizer, loss_of = _private(ctx, "ghost")
    hooks, stepped, _ = _private(ctx, "hooks")
    for step in api.each(p.steps):
        rows = torch.randn(p.rows, p.tokens, WIDTH, device=ctx.device)
        labels = torch.randint(CLASSES, (p.rows,), device=ctx.device)
        hooks.load_state_dict(ghost.state_dict())
        stepped.zero_grad()
        cross_entropy(p.scale * hooks(rows).mean(1), labels).backward()
        by_row = {name: value.grad_sample for name, value in _weights(hooks).items()}
        expected, documented = (_clipped(by_row, p, wrong) for wrong in (False, True))
        stepped.zero_grad()
        optimizer.zero_grad()
        loss = loss_of(p.scale * ghost(rows).mean(1), labels)
        loss.backward()
        optimizer.step()
        actual = features.gradients(ghost._module)
        value = torch.tensor(loss.item())
        features.record(ctx, step, value, actual, expected, documented)


def _weights(model: Any) -> dict[str, Any]:
    return dict(model._module.named_parameters())


def _clipped(by_row: dict[str, Any], p: Any, wrong: bool) -> dict[str, Any]:
    """The mean of the clipped gradients of the rows, which are [rows, *shape]."""
    import torch

    squares = {name: g.flatten(1).square().sum(1) for name, g in by_row.items()}
    if wrong and "bias" in squares:
        # All tokens have the same gradient, as the mean over the tokens follows.
        squares["bias"] = (squares["bias"] / p.tokens).square()
    norms = torch.stack(list(squares.values())).sum(0).sqrt()
    factors = (p.clipping / (norms + 1e-6)).clamp(max=1)
    return {name: torch.einsum("n,n...->...", factors, g) / p.rows for name, g in by_row.items()}


def _private(ctx: api.Context, mode: str) -> tuple[Any, Any, Any]:
    """A linear layer, its optimizer and the loss as Opacus makes them private, without noise."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    p = ctx.params
    layer = torch.nn.Linear(WIDTH, CLASSES, bias=p.bias).to(ctx.device)
    options: Any = {"criterion": torch.nn.CrossEntropyLoss()} if mode == "ghost" else {}
    model, optimizer, *rest = PrivacyEngine().make_private(
        module=layer,
        optimizer=torch.optim.SGD(layer.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(torch.zeros(p.rows)), batch_size=p.rows),
        noise_multiplier=0.0,
        max_grad_norm=p.clipping,
        poisson_sampling=False,
        grad_sample_mode=mode,
        **options,
    )
    return model, optimizer, rest[0]


def exercised(records: api.Records) -> api.Exercise:
    """Rows with a gradient of the bias were clipped."""
    p = records.params
    text = f"a loss times {p.scale:g}, clipped to {p.clipping:g}"
    return api.Exercise.needs(p.bias, "no bias") & api.Exercise.of(p.scale >= p.clipping, text)
