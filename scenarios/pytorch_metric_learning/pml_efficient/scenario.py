"""DistributedLossWrapper(efficient=True) gives a gradient of another length and direction.

With ``efficient=True`` each rank takes only its own embeddings as anchors, and compares them with
the gathered embeddings of all ranks. That saves memory and time. The loss of NTXentLoss is that of
one process, times the number of ranks, as it is without the option. But the gradient is not: on 2
ranks it is about 1.5 times as long as that of one process, in another direction, and on more ranks
it is further off. Upstream knows this: the documentation says that "gradients will not be equal to
those in non-distributed code". It does not say by how much, and nothing reports it in a run.

Root cause: ``torch.distributed.all_gather`` passes no gradient on. An embedding gets a gradient as
an anchor of its own rank, but none as a positive or negative of other ranks' anchors. What is left
is multiplied by the number of ranks. That is right without the option, where each rank computes the
loss of all anchors and DDP averages what must be added. With it, each rank has a mean over its own
anchors, and DDP's average of these means is right already.

2.9.0 is affected as released. The fixed variant is our remedy: it gathers with the gradient, and
does not multiply. It is exact for losses with equal weights of all anchors, such as NTXentLoss.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import whole_batch
from scenarios.pytorch_metric_learning import _wrapped as wrapped

if TYPE_CHECKING:
    from torch import Tensor


GATHERED = """
if all_ref_emb is None:
    others = list(torch.distributed.nn.functional.all_gather(emb))
    others.pop(torch.distributed.get_rank())
    all_emb = torch.cat([emb, *others])
return self.loss(emb, labels, indices_tuple, all_emb, all_labels)
"""


def with_gradient(function: Any) -> api.Edits:
    """The efficient loss gathers with the gradient, and is returned as it is."""
    import libcst as cst
    import libcst.matchers as m

    pattern = m.Call(args=[m.Arg(m.Name("emb")), m.ZeroOrMore()])
    for line in m.findall(function, m.SimpleStatementLine([m.Assign(value=pattern)])):
        called = cst.ensure_type(cst.ensure_type(line, cst.SimpleStatementLine).body[0], cst.Assign)
        if m.matches(called.targets[0].target, m.Name("loss")):
            yield line, cst.FlattenSentinel(cst.parse_module(GATHERED).body)


def own_alone(alone: Any, parts: Sequence[whole_batch.Part]) -> Tensor:
    """Each step applied the gradient of each rank's own embeddings as anchors, times the number of
    ranks: other ranks' embeddings were constants."""
    losses: list[Tensor] = [alone.anchored(parts, rank) for rank in range(len(parts))]
    return sum(losses[1:], losses[0])


oracle = whole_batch.WholeBatch(
    own_alone,
    "exactly that follows if no gradient reaches the embeddings of other ranks",
    wrapped.scales,
)


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP with the wrapped loss."""
    wrapped.train(ctx, oracle, efficient=ctx.params.efficient)


def exercised(records: api.Records) -> api.Exercise:
    """Several ranks compared their rows, with efficient=True."""
    efficient = records.params.efficient
    return whole_batch.several(records) & api.Exercise.needs(efficient, "efficient=False")
