"""A LoRA adapter under FSDP2. Imports accelerate and peft: import it inside ``run``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import is_peft_model
from accelerate.utils.fsdp_utils import load_fsdp_model, save_fsdp_model
from peft import LoraConfig, get_peft_model
from torch import nn

from harness.bugs import api
from scenarios.accelerate import _sharded as sharded

FEATURES, RANK, ROWS = 8, 4, 16


class Adapter:
    """A frozen base with an adapter, sharded by accelerate, and its optimizer."""

    def __init__(self, ctx: api.Context, seed: int) -> None:
        self.accelerator = sharded.accelerator(ctx, "no", state_dict_type=ctx.params.state_dict)
        torch.manual_seed(ctx.seed)
        base = nn.Sequential(
            nn.Linear(FEATURES, FEATURES), nn.Tanh(), nn.Linear(FEATURES, FEATURES)
        )
        torch.manual_seed(seed)
        module = get_peft_model(base, LoraConfig(r=RANK, target_modules=["0", "2"]))
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        self.shapes = sorted(list(weight.shape) for weight in weights)
        adamw = torch.optim.AdamW(weights, lr=ctx.params.lr)
        self.model, self.optimizer = self.accelerator.prepare(module, adamw)
        generator = torch.Generator().manual_seed(ctx.seed)
        rows = torch.randn(ROWS, FEATURES, generator=generator)
        self.rows = rows.to(ctx.device)

    def train(self, steps: int) -> None:
        """Some steps of AdamW towards an output of 1."""
        for _ in range(steps):
            self.accelerator.backward((self.model(self.rows) - 1).square().mean())
            self.optimizer.step()
            self.optimizer.zero_grad()

    def values(self) -> Mapping[str, list[float]]:
        """This rank's part of each adapter weight."""
        return {
            name: weight.to_local().flatten().tolist()
            for name, weight in self.model.named_parameters()
            if weight.requires_grad
        }

    @property
    def saving(self) -> tuple[Any, ...]:
        """The first arguments of accelerate's functions for saving and loading."""
        return self.accelerator.state.fsdp_plugin, self.accelerator, self.model


def saved(ctx: api.Context) -> None:
    """Train the adapter and save it, with the arguments that transformers' Trainer passes."""
    adapter = Adapter(ctx, ctx.seed)
    adapter.train(ctx.params.steps)
    ctx.record("saved", values=adapter.values(), shapes=adapter.shapes)
    save_fsdp_model(*adapter.saving, str(_folder(ctx)), adapter_only=True)


def loaded(ctx: api.Context) -> None:
    """Load what was saved into a new adapter."""
    adapter = Adapter(ctx, ctx.seed + 1)
    fresh, peft = adapter.values(), bool(is_peft_model(adapter.model))
    load_fsdp_model(*adapter.saving, str(_folder(ctx)), adapter_only=True)
    ctx.record("loaded", fresh=fresh, values=adapter.values(), peft=peft, file=_shapes(ctx))


def _folder(ctx: api.Context) -> Path:
    return ctx.folder / "checkpoint"


def _shapes(ctx: api.Context) -> list[list[int]]:
    """The shapes in the file of a complete state dict, on rank 0; otherwise nothing."""
    file = _folder(ctx) / "pytorch_model_fsdp.bin"
    if ctx.rank or not file.exists():
        return []
    return sorted(list(weight.shape) for weight in torch.load(file, weights_only=True).values())
