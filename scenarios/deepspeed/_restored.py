"""A linear map under DeepSpeed's engine, saved and loaded. Imports torch and DeepSpeed:
import it inside ``run``."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness.bugs import api
from scenarios.common import linear
from scenarios.common.linear import Rows
from scenarios.deepspeed import _regression as regression

TAG = "saved"
BATCH = 8
"""Rows of a rank's part of a step."""


def engine(ctx: api.Context, lr: float, **config: Any) -> Any:
    """DeepSpeed's engine with Adam; each launch has other initial weights, which a load changes."""
    torch.manual_seed(ctx.seed + len(ctx.launch))
    return regression.engine(
        ctx,
        partial(torch.optim.Adam, lr=lr),
        train_micro_batch_size_per_gpu=BATCH,
        zero_allow_untested_optimizer=True,
        **config,
    )


def rows(ctx: api.Context, count: int) -> list[Rows]:
    """The global batches of all steps, the same in both launches, of one linear map."""
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    weight = torch.randn(linear.OUTPUTS, linear.FEATURES, generator=generator)
    size = (count, ctx.world_size * BATCH, linear.FEATURES)
    inputs = torch.randn(size, generator=generator)
    return [(part.to(ctx.device), (part @ weight.T).to(ctx.device)) for part in inputs]


def adam(engine: Any) -> dict[str, float]:
    """Adam's count of steps, and the norms of its moments; 0 if it has no state."""
    base = engine.optimizer
    while hasattr(base, "optimizer"):
        base = base.optimizer
    states = list(base.state.values())

    def norm(name: str) -> float:
        return float(sum(float(s[name].double().norm()) ** 2 for s in states if name in s)) ** 0.5

    count = max((int(state["step"]) for state in states if "step" in state), default=0)
    return {"count": count, "mean": norm("exp_avg"), "square": norm("exp_avg_sq")}


def saved_weights(folder: Path, rank: int, module: Any = None) -> dict[str, Tensor]:
    """Save the module's weights beside the checkpoint, or load them if no module is given."""
    file = folder / f"weights_{rank}.pt"
    if module is not None:
        torch.save({n: p.detach().clone() for n, p in module.named_parameters()}, file)
    weights: dict[str, Tensor] = torch.load(file, weights_only=True)
    return weights


def differing(module: Any, weights: dict[str, Tensor]) -> int:
    """How many weights of a module differ from these."""
    return sum(int((p.detach() != weights[n]).sum()) for n, p in module.named_parameters())


def masters(engine: Any) -> dict[str, Tensor]:
    """A copy of all ranks' fp32 masters, or of the weights if there are none; a collective call."""
    from deepspeed.utils import safe_get_full_fp32_param

    parameters = dict(engine.module.named_parameters())
    unfused = getattr(engine.optimizer, "fp32_groups", None)
    if unfused is not None:  # the optimizer without ZeRO has a list for each group of parameters
        flat = [master for group in unfused for master in group]
        return {n: m.detach().clone() for n, m in zip(parameters, flat, strict=True)}
    by_name = {name: safe_get_full_fp32_param(p) for name, p in parameters.items()}
    return {n: (parameters[n] if f is None else f).detach().clone() for n, f in by_name.items()}


def apart(ones: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """The greatest difference between tensors of the same name."""
    return max(
        float((one.float() - others[name].float()).abs().max()) for name, one in ones.items()
    )
