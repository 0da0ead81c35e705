"""Over gloo the gradient of torch.distributed.nn.all_gather is scrambled if it comes transposed.

This affects users who train on CPUs, or test there what they train on GPUs, with a loss over the
rows of all ranks, as contrastive losses are. The gradient that a rank sends back for the gathered
rows arrives with its numbers at other places. It depends on how the loss is written:
``einsum("ah,bh->ab", queries, documents)`` is affected, and ``linear(queries, documents)`` is not.
PyLate 1.2 to 1.4.0 trains so. NCCL takes another way, which makes its buffers contiguous.

Root cause: without NCCL, ``_AllGather.backward`` receives the ranks' gradients in buffers that have
the strides of its own. What is sent is contiguous. gloo copies the memory as it is, so a transposed
buffer has the numbers in the wrong order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import whole_batch

if TYPE_CHECKING:
    from torch import Tensor


def contiguous_buffers(function: Any) -> api.Edits:
    """The buffers have the layout of what is sent."""
    import libcst as cst
    import libcst.matchers as m

    calls: Any = m.findall(function, m.Call(m.Attribute(attr=m.Name("empty_like"))))
    for call in calls:
        if m.matches(call.args[0].value, m.Name("tensor")):
            layout = cst.parse_expression("torch.contiguous_format")
            keyword = cst.Arg(layout, keyword=cst.Name("memory_format"))
            yield call, call.with_changes(args=[*call.args, keyword])


def compared(queries: Tensor, documents: Tensor, product: str, first: int) -> Tensor:
    """The loss of queries among documents, of which those from ``first`` on are theirs."""
    import torch
    from torch.nn.functional import cross_entropy, linear

    einsum = product == "einsum"
    scores = torch.einsum("ah,bh->ab", queries, documents) if einsum else linear(queries, documents)
    return cross_entropy(scores, first + torch.arange(len(queries), device=queries.device))


def scrambled(alone: whole_batch.Loss, parts: Sequence[whole_batch.Part]) -> Tensor:
    """Each step applied the gradient of the gathered rows with its numbers in the order of the
    transposed matrix."""
    import torch

    def received(documents: Tensor) -> Tensor:
        """The same numbers, whose gradient is scrambled."""
        copy = documents * 1
        copy.register_hook(lambda gradient: gradient.reshape(gradient.T.shape).T)
        return copy

    losses = []
    for rank, (outputs, _) in enumerate(parts):
        documents = torch.cat([received(others[:, 1]) for others, _ in parts])
        losses.append(compared(outputs[:, 0], documents, "einsum", rank * len(outputs)))
    return torch.stack(losses).mean()


oracle = whole_batch.WholeBatch(
    scrambled, "exactly that follows if the memory of a gradient is read as that of its transpose"
)


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP; each rank compares its queries with the documents of all."""
    import torch
    import torch.distributed as dist
    import torch.distributed.nn

    dist.init_process_group(ctx.lane.backend)
    product = ctx.params.product

    def loss(outputs: Tensor, _: Tensor) -> Tensor:
        gathered = torch.cat(torch.distributed.nn.all_gather(outputs[:, 1].contiguous()))
        return compared(outputs[:, 0], gathered, product, ctx.rank * len(outputs))

    def alone(outputs: Tensor, _: Tensor) -> Tensor:
        return compared(outputs[:, 0], outputs[:, 1], product, 0)

    oracle.train(ctx, loss, alone)
