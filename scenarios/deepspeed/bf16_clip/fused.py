"""The layer norm and the Adam of the reports: NVIDIA's apex where it is installed, otherwise
torch's.

apex's kernels run on GPUs only, so the CPU lane always uses torch's. The evidence says which were
used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from harness.bugs import api
from harness.rank import apex


def layer_norm(lane: api.Lane) -> type[nn.Module]:
    """The class of layer norms over the last dimension; DeepSpeed's LayerSpec takes a class."""
    if not _fused(lane):
        return nn.LayerNorm
    from apex.normalization import MixedFusedLayerNorm  # type: ignore[import-not-found]

    apex.use("MixedFusedLayerNorm")
    norm: type[nn.Module] = MixedFusedLayerNorm
    return norm


def adam(lane: api.Lane, parameters: Iterable[nn.Parameter], lr: float) -> Any:
    """Adam without weight decay."""
    if not _fused(lane):
        return torch.optim.Adam(parameters, lr=lr)
    from apex.optimizers import FusedAdam  # type: ignore[import-not-found]

    apex.use("FusedAdam")
    return FusedAdam(parameters, lr=lr, adam_w_mode=False)


def _fused(lane: api.Lane) -> bool:
    return lane is api.Lane.GPU and apex.installed()
