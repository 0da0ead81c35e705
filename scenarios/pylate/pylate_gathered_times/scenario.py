"""Gathered across ranks, PyLate's Contrastive multiplies the gradient by the number of ranks.

This affects users of PyLate who train a late-interaction model on several ranks with
``gather_across_devices=True``, so that each query is compared with the documents of all ranks. The
gradient is that of one process with the whole batch, multiplied by the number of ranks: 8 times on
8 GPUs. SGD, gradient clipping and a second loss feel it; Adam hides most of it.

Root cause: the loss is multiplied because DDP averages. But ``torch.distributed.nn.all_gather``
sums the gradients of a document over the ranks on its way back, and each rank's loss is the mean
over its own queries. So the mean of the ranks' gradients is already that of the whole batch. In
``pylate_world_size`` the factor was there without gathering, too; 1.3.1 fixed only that.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.pylate import _contrastive as contrastive

oracle = contrastive.oracle


def not_multiplied(function: Any) -> api.Edits:
    """The loss stays as it is."""
    import libcst as cst
    import libcst.matchers as m

    times = m.AugAssign(m.Name("loss"), m.MultiplyAssign())
    for line in m.findall(function, m.SimpleStatementLine([times])):
        yield line, cst.parse_statement("pass")


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP; each rank compares its queries with the documents of all."""
    contrastive.train(ctx, gather=True)
