"""Finds parts of a training whose result depends by design on how a batch is divided."""

from __future__ import annotations

import re
from typing import Any

from harness.rank.training.layouts import instances

UNLIKE = {
    r"SyncBatchNorm": "normalises over the micro-batches of all ranks (--layouts ranks,resume for "
    "the test)",
    r"(?<!Sync)(?<!Frozen)BatchNorm": "normalises over the micro-batch of a rank (freeze it with "
    ".eval(), or use another norm for the test)",
    r"SpectralNorm": "iterates in each forward pass, so each micro-batch of a step has another "
    "spectral norm (.eval() for the test)",
    r"VectorQuant|Codebook": "may change its codebook in each forward pass, by the rows of a "
    "micro-batch (.eval() for the test)",
    r"MoE|Moe|Router|Experts": "may drop tokens or balance experts by micro-batch (set the "
    "capacity so high that none is dropped, and the weight of the balancing loss to 0)",
    r"NegativesRanking|InBatch|Contrastive|InfoNCE|NTXent": "compares the rows of a micro-batch "
    "with each other (test it with micro-batches of one size)",
}
"""For each pattern of class names: why layouts differ, and what to do for the test."""


def unlike_by_design(model: Any) -> list[str]:
    """One line for each kind of module that differs between layouts by design."""
    lines: dict[str, str] = {}
    for name, module in model.named_modules() if model is not None else ():
        hooks = module._forward_pre_hooks.values()  # one may be a norm
        for kind in [type(one).__name__ for one in (module, *hooks)]:
            for pattern, why in UNLIKE.items():
                if re.search(pattern, kind) and module.training:
                    lines.setdefault(why, f"{kind} ({name or 'the model'}) {why}")
    return list(lines.values())


SCHEDULE = (
    "accelerate steps a prepared schedule once for each rank, by design: several ranks have other "
    "learning rates unless the script multiplies the lengths of its schedule by their number "
    "(Accelerator(step_scheduler_with_optimizer=False) for the test)"
)


BASELINE = (
    "KTOTrainer subtracts a KL of the micro-batches of all ranks, so its gradient depends by "
    "design on the number of micro-batches (--layouts ranks,resume for the test)"
)


def objects_unlike_by_design() -> list[str]:
    """A line if accelerate has prepared a schedule that it steps once for each rank, and one if the
    script has a trainer whose loss has a baseline from its micro-batch."""
    schedules = instances("accelerate.scheduler", "AcceleratedScheduler")
    is_unlike = any(one.step_with_optimizer and not one.split_batches for one in schedules)
    has_baseline = instances("trl.trainer.kto_trainer", "KTOTrainer")
    return [SCHEDULE] * is_unlike + [BASELINE] * bool(has_baseline)
