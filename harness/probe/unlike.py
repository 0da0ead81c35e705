"""Parts of a model whose result depends by design on how a batch is divided."""

from __future__ import annotations

import re
from typing import Any

UNLIKE = {
    r"BatchNorm": "normalises over the micro-batch of a rank (freeze it with .eval(), or use "
    "another norm for the test)",
    r"MoE|Moe|Router|Experts": "may drop tokens or balance experts by micro-batch (set the "
    "capacity so high that none is dropped, and the weight of the balancing loss to 0)",
    r"NegativesRanking|InBatch|Contrastive|InfoNCE|NTXent": "compares the rows of a micro-batch "
    "with each other (test it with micro-batches of one size)",
}
"""By the names of classes, why they are unlike in each layout, and what to do for the test."""


def unlike_by_design(model: Any) -> list[str]:
    """One line for each kind of module in a model that is unlike by design."""
    found: dict[str, str] = {}
    for name, module in model.named_modules() if model is not None else ():
        kind = type(module).__name__
        for pattern, why in UNLIKE.items():
            if re.search(pattern, kind) and module.training:
                found.setdefault(why, f"{kind} ({name or 'the model'}) {why}")
    return list(found.values())
