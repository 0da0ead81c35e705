"""ClipLoss(local_loss=True) without gather_with_grad leaves out a part of the gradient.

With ``local_loss=True`` each rank of open_clip computes the loss of its own images against the
texts of all ranks, and the reverse. That takes much less memory than the loss of all rows on each
rank. It is right together with ``gather_with_grad=True``. Without it the values of the loss are
right, too, and training goes on, but the gradient is shorter than that of one process with the same
batch (here 0.64 times as long), and has another direction. Nothing checks the combination, and
``gather_with_grad`` is False by default, both in the class and on the command line.

Root cause: ``gather_features`` calls ``torch.distributed.all_gather``, which passes no gradient on.
With ``local_loss`` it does not put back the rank's own features either. So a feature gets a
gradient as the one that is compared, and none as one of those that others are compared with.
Upstream knows that the two options belong together: its issues say so, and its models were trained
with both.

3.3.0 is affected as released. The fixed variant is our remedy: ``local_loss`` implies
``gather_with_grad``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import whole_batch
from scenarios.open_clip_torch import _clip_loss as clip_loss

if TYPE_CHECKING:
    from torch import Tensor


def implied(function: Any) -> api.Edits:
    """``local_loss`` implies ``gather_with_grad``."""
    import libcst as cst
    import libcst.matchers as m

    attribute = m.Attribute(attr=m.Name("gather_with_grad"))
    for line in m.findall(function, m.Assign([m.AssignTarget(attribute)])):
        value = cst.ensure_type(line, cst.Assign).value
        yield value, cst.parse_expression("gather_with_grad or local_loss")


def anchors_alone(_: whole_batch.Loss, parts: Sequence[whole_batch.Part]) -> Tensor:
    """Each step applied the gradient of the features that are compared; those that they are
    compared with were constants."""
    import torch

    images, texts = clip_loss.features(whole_batch.joined(parts)[0])
    order = torch.arange(len(images), device=images.device)
    halves = ((images, texts.detach()), (texts, images.detach()))
    logits = torch.stack([clip_loss.SCALE * anchors @ others.T for anchors, others in halves])
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), order.repeat(2))


oracle = whole_batch.WholeBatch(
    anchors_alone, "exactly that follows if no gradient passes through the gathered features"
)


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with the local loss."""
    gather_with_grad = ctx.params.gather_with_grad
    clip_loss.train(ctx, oracle, local_loss=True, gather_with_grad=gather_with_grad)


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks compared their rows, without gather_with_grad."""
    gathered = records.params.gather_with_grad
    return whole_batch.several(records) & api.Exercise.needs(not gathered, "gather_with_grad=True")
