"""DDP with static_graph=True never averages the gradients of a module that returns a dataclass.

Many models return a dataclass with the loss and the logits. Under
``DistributedDataParallel(static_graph=True)`` such a model trains without an error, but each rank
applies only its own gradient. The ranks' weights drift apart from the first step on. The loss of
each rank falls as it should, and the checkpoint of rank 0 has seen the data of rank 0 alone.

Root cause: with ``static_graph`` the first backward pass must reduce all gradients at its end. DDP
arranges that by a function that it puts behind each output tensor, and finds those tensors by
flattening the output as a pytree. A dataclass that is not registered as a pytree is a leaf, so no
tensor is found, and the reduction is never arranged. In later passes DDP waits for the first one,
so nothing is reduced there either. Before torch 2.1 it did not wait: later gradients are reduced,
and the weights stay as far apart as after the first step.

torch 2.15.0 still has the bug: as released, it is the buggy variant. The fixed variant is our
remedy: a hook on every tensor that ``_find_tensors`` finds, DDP's own search, which enters
dataclasses. It does not enter an object of a plain class: there the bug remains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import unreduced

if TYPE_CHECKING:
    from torch import Tensor, nn


HOOKS = """
if torch.is_grad_enabled() and self.static_graph:
    def arrange(_: torch.Tensor, owner: Any = weakref.ref(self)) -> None:
        if not owner()._static_graph_delay_allreduce_enqueued:
            Variable._execution_engine.queue_callback(owner().reducer._delay_all_reduce)
            owner()._static_graph_delay_allreduce_enqueued = True

    for tensor in _find_tensors(output):
        if tensor.requires_grad and not self._static_graph_delay_allreduce_enqueued:
            tensor.register_hook(arrange)
"""


def hooks_on_outputs(function: Any) -> api.Edits:
    """Before the output is flattened, hook each of its tensors that needs a gradient."""
    import libcst as cst
    import libcst.matchers as m

    flag = m.Attribute(attr=m.Name("_static_graph_delay_allreduce_enqueued"))
    added = cst.parse_module(HOOKS).body
    for node in m.findall(function, m.If()):
        if m.findall(cst.ensure_type(node, cst.If).test, flag):
            yield node, cst.FlattenSentinel([*added, node])


TYPES = {"dataclass": "Output", "plain_class": "Plain", "tuple": "tuple", "tensor": "Tensor"}
"""The name of the output's type."""


def output(at: api.Position) -> api.Plan:
    """The type of the output, and whether torch finds the tensor in it."""
    name = api.exactly(TYPES[at.params.output])
    return {"output": api.Kind({"type": name, "found": api.FLAG, "static": api.FLAG})}


def own_at_first(step: unreduced.Step, records: api.Records) -> bool:
    """A step applied another gradient than plain torch's mean over the ranks: the rank's own.
    Before torch 2.1 only the first step did. Later ones applied the mean of the ranks' gradients,
    each at weights of its own."""
    if step.step == 1 or unreduced.own_alone(step, records):
        return unreduced.own_alone(step, records)
    steps = records.typed(unreduced.Step)
    first = next(other for other in steps if other.rank == step.rank)
    owns = [other.own for other in steps if other.step == step.step]
    along = sum(own.ratio * own.gradient**2 for own in owns) / len(owns)
    close = api.near(step.applied**2, along, share=1e-3)
    return close and api.near(step.apart, first.apart, share=1e-3)


oracle = unreduced.Unreduced(
    unreduced.Step,
    own_at_first,
    also=output,
    reason="exactly that follows if DDP never arranges the first reduction",
)


@dataclass
class Output:
    """The output of a model."""

    logits: Tensor


class Plain:
    """The same as an object of a class that is no dataclass."""

    def __init__(self, logits: Tensor) -> None:
        self.logits = logits


def run(ctx: api.Context) -> None:
    """Train a linear map under DDP on two ranks' parts of each global batch."""
    import copy

    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils import _pytree as pytree

    from scenarios.common import linear, plain_torch

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    plain = linear.model().to(ctx.device)
    module = DistributedDataParallel(
        _wrapping(copy.deepcopy(plain), p.output), static_graph=p.static_graph
    )
    answers: list[Any] = []

    def outputs(inputs: Tensor) -> Any:
        output = module(inputs)
        answers.append(output)
        return output[0] if p.output == "tuple" else getattr(output, "logits", output)

    def whole() -> dict[str, Tensor]:
        return plain_torch.copied(module.module.inner)

    unreduced.train(ctx, plain, outputs, torch.optim.SGD(module.parameters(), lr=p.lr), whole)
    leaves, _ = pytree.tree_flatten(answers[0])
    has_tensor = any(isinstance(leaf, torch.Tensor) for leaf in leaves)
    ctx.record(
        "output", type=type(answers[0]).__name__, found=has_tensor, static=module.static_graph
    )


def _wrapping(inner: nn.Module, kind: str) -> nn.Module:
    """A module that returns ``inner``'s output in an object of this kind."""
    from torch import nn

    holders = {"dataclass": Output, "plain_class": Plain, "tuple": lambda logits: (logits, 1)}
    hold: Any = holders.get(kind, lambda logits: logits)

    class Wrapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, inputs: Tensor) -> Any:
            return hold(self.inner(inputs))

    return Wrapping()


def exercised(records: api.Records) -> api.Exercise:
    """The graph was static, and the output's tensors were in an object that is no pytree."""
    output = records.of("output", 0)[0]
    graph = "static" if output["static"] else "dynamic"
    status = "found" if output["found"] else "not found"
    text = f"a {graph} graph; the tensor in the output of type {output['type']} is {status}"
    hidden = output["static"] and not output["found"]
    return api.Exercise.of(hidden, text) & unreduced.parted(records)
