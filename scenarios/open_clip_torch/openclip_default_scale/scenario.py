"""With ClipLoss's defaults the gradient depends on the number of ranks: on n ranks it is 1 / n.

The loss of open_clip compares each image with the texts of all ranks, and each text with the
images. Its value is right and the same on all ranks. But with ``local_loss=False`` and
``gather_with_grad=False``, the defaults of the class and of the command line, DDP's gradient is
1 / n of that of one process with the same batch. With ``gather_with_grad=True`` it is that of one
process. So a learning rate of SGD, a weight decay in the loss or a threshold for gradient clipping
that was found on one number of ranks means something else on another, and switching to
``gather_with_grad`` makes the gradient n times as long. Adam and AdamW, which open_clip's recipes
use, are not changed by a constant factor, apart from their epsilon. Upstream knows the difference
between the modes and treats it as a property of them, not as a bug.

Root cause: ``gather_features`` calls ``torch.distributed.all_gather``, which passes no gradient on,
and puts back the rank's own features, which have one. Each rank has the gradient of the whole loss
for its own features alone. These must be added, but DDP averages them.

3.3.0 is affected as released. The fixed variant is our remedy: ``gather_with_grad`` is True unless
the caller says otherwise.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api
from scenarios.common import whole_batch
from scenarios.open_clip_torch import _clip_loss as clip_loss


def gathers_with_gradient(function: Any) -> api.Edits:
    """The default of ``gather_with_grad`` is True."""
    import libcst as cst
    import libcst.matchers as m

    for parameter in m.findall(function, m.Param(m.Name("gather_with_grad"))):
        yield cst.ensure_type(parameter, cst.Param).default, cst.Name("True")


oracle = whole_batch.Averaged()


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with ClipLoss."""
    options = {"gather_with_grad": True} if ctx.params.gather == "with_grad" else {}
    clip_loss.train(ctx, oracle, **options)


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks compared their rows, and ClipLoss had its defaults."""
    default = records.params.gather == "default"
    return whole_batch.several(records) & api.Exercise.needs(default, "gather_with_grad=True")
