"""Were the weights restored by a load with DeepSpeed? ``_restored`` saves and loads them.

A rank records ``loaded`` with the number of weights that are ``differing`` from the saved ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.bugs import api

if TYPE_CHECKING:
    from torch import Tensor


def saved_weights(folder: Path, rank: int, module: Any = None) -> dict[str, Tensor]:
    """Save the module's weights beside the checkpoint, or load them if no module is given."""
    import torch

    file = folder / f"weights_{rank}.pt"
    if module is not None:
        torch.save({n: p.detach().clone() for n, p in module.named_parameters()}, file)
    weights: dict[str, Tensor] = torch.load(file, weights_only=True)
    return weights


def differing(module: Any, weights: dict[str, Tensor]) -> int:
    """How many weights of a module differ from these."""
    return sum(int((p.detach() != weights[n]).sum()) for n, p in module.named_parameters())


def weights_lost(records: api.Records) -> api.Finding | None:
    """The finding that weights were not restored; this is not a documented symptom."""
    count = records.of("loaded")[0]["differing"]
    text = f"{count} weights differ from those saved"
    return api.Finding(text, documented=False) if count else None


def weights_differ(records: api.Records) -> dict[str, bool]:
    """The weights are loaded."""
    return {"a weight differs from those saved": weights_lost(records) is not None}
