"""The DPOTrainer on several ranks, with the loss that Liger's setting chooses.

Imports torch and trl: import it inside ``run``.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from trl import DPOConfig

from harness.bugs import api
from scenarios.common import plain_torch, unreduced
from scenarios.trl import _preferences as preferences

KERNELS = ("rope", "rms_norm", "swiglu", "cross_entropy", "fused_linear_cross_entropy")
"""Liger's other kernels, which have nothing to do with the bug and need a GPU."""


def train(ctx: api.Context) -> None:
    """Train on preferences; each rank gets its part of each global batch."""
    torch._dynamo.config.disable = True  # Liger's loss is the same without a compiler
    p = ctx.params
    with ctx.phase("init"):
        policy, reference = preferences.model(ctx), preferences.model(ctx)
        optimizer = torch.optim.SGD(policy.parameters(), lr=p.lr)
        _Watch(ctx, policy, optimizer, policy.get_submodule("model"))  # all that Liger's loss calls
        trainer = preferences.trainer(
            ctx, policy, optimizer, reference, 1, p.steps, **_settings(p.liger)
        )
    with ctx.phase("steps"):
        trainer.train()


def _settings(liger: bool) -> dict[str, Any]:
    if "use_liger_loss" in inspect.signature(DPOConfig).parameters:
        return {"use_liger_loss": liger}
    return {"use_liger_kernel": liger, "liger_kernel_config": dict.fromkeys(KERNELS, False)}


class _Watch(preferences.Watch):
    """Compares each step with plain torch on the rows of all ranks, and on those of its rank."""

    def facts(self) -> dict[str, Any]:
        (rows,) = self.seen
        whole = self.differentiated(self.start, unreduced.of_all_ranks(rows))
        own = self.differentiated(self.start, [rows])
        name = "lm_head.weight"
        return {
            **self._applied(whole),
            "own": self._applied(own),
            "apart": unreduced.apart(plain_torch.copied(self.model)),
            "parted": any(part[name].ne(whole.micro[0][name]).any() for part in whole.micro),
        }
