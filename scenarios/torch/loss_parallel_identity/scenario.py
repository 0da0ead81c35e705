"""Under loss_parallel(), log_softmax has the gradient of the identity, except in cross_entropy.

With tensor parallelism the logits of a large vocabulary stay split over the ranks, and the loss is
computed inside ``loss_parallel()``. Cross-entropy is right there. But distillation, a KL divergence
or an entropy bonus call ``log_softmax`` themselves. Their value is right and their gradient is not:
it lacks the part that makes probabilities sum to one. Here three quarters of the gradient's norm
have a wrong direction. Since the loss is right, its curve shows nothing.

Root cause: ``loss_parallel`` replaces the backward of ``log_softmax`` by a function that returns
the gradient as it comes, because the backward of its own ``nll_loss`` does the work of both.
Nothing checks that the gradient comes from there.

torch 2.15.0 still has the bug: as released, it is the buggy variant. The fixed variant is our
remedy, which does what upstream's open pull request 191606 proposes: each of the two functions
computes its own backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from harness.bugs import api
from scenarios.common import applied, plain_loss, usual_checks

if TYPE_CHECKING:
    from torch import Tensor

FEATURES = 16


def own_backward(function: Any) -> api.Edits:
    """The backward of ``log_softmax`` takes away the softmax, weighted by the gradient's sum."""
    value = "(grad_output - torch.exp(args[1]) * grad_output.sum(args[2], keepdim=True))"
    import libcst as cst
    import libcst.matchers as m

    for line in m.findall(function, m.SimpleStatementLine([m.Return()])):
        for name in m.findall(line, m.Name("grad_output")):
            yield line, line.deep_replace(name, cst.parse_expression(value))


def nll_alone(function: Any) -> api.Edits:
    """The backward of ``nll_loss`` no longer adds the softmax."""
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.Return()):
        yield (
            cst.ensure_type(node, cst.Return).value,
            cst.parse_expression("grad_input * grad_output"),
        )


@dataclass(frozen=True)
class Step(applied.Step):
    loss: api.Size
    identity: applied.Single
    classes: api.Count


def of_identity(step: Step, _: api.Records) -> bool:
    """A step applied another gradient than plain torch's: that of the identity."""
    return step.identity.times(1)


oracle = applied.Applied(
    Step,
    of_identity,
    parts=lambda at: 1,
    also=lambda at: {"loss": api.Kind({"name": api.exactly(at.params.loss)})},
    loss="whole",
    reason="exactly that follows if log_softmax has the gradient of the identity",
    checks=[
        plain_loss.loss_unlike_reference,
        usual_checks.loss_ends_higher,
        usual_checks.loss_rises,
    ],
    picture=api.bars(
        "The part of the applied gradient in a wrong direction",
        "with the bug more than half of the gradient of distillation points elsewhere",
        lambda records: ((f"step {s['step']}", s["off"]) for s in records.of("step", 0)),
        "of its norm",
    ),
)


def run(ctx: api.Context) -> None:
    """Train a linear classifier whose classes are split over the ranks, as torch documents it."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, loss_parallel, parallelize_module

    try:
        from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
    except ImportError:  # before torch 2.5
        from torch.distributed._tensor import DTensor, Replicate, Shard, distribute_tensor  # type: ignore[attr-defined]
    from scenarios.common import plain_torch

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    ctx.record("loss", name=p.loss)
    mesh = init_device_mesh(ctx.device.type, (ctx.world_size,))
    head: Any = torch.nn.Linear(FEATURES, p.classes, bias=False).to(ctx.device)
    split = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    head = parallelize_module(head, mesh, split)
    optimizer = torch.optim.SGD(head.parameters(), lr=p.lr)
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    inputs = torch.randn(p.rows, FEATURES, generator=generator).to(ctx.device)
    targets = torch.randn(p.rows, p.classes, generator=generator).softmax(-1).to(ctx.device)
    for step in api.each(p.steps):
        before = _whole(head.weight)
        with loss_parallel():
            if p.loss == "distillation":
                parted = distribute_tensor(targets, mesh, [Shard(-1)])
                loss = _distillation(head(inputs).log_softmax(1), parted)  # torch 2.6 refuses -1
            else:
                whole = distribute_tensor(targets.argmax(-1), mesh, [Replicate()])
                loss = torch.nn.functional.cross_entropy(head(inputs), whole)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        after = _whole(head.weight)
        comparisons = {
            name: plain_torch.facts(
                plain_torch.differentiate(of, before, [(inputs, targets)]), before, after, p.lr
            )
            for name, of in (("right", _loss(p.loss)), ("identity", _without_log_softmax))
        }
        value = loss.full_tensor() if isinstance(loss, DTensor) else loss
        ctx.record(
            "step",
            step,
            loss=float(value),
            **comparisons["right"],
            identity=comparisons["identity"],
            classes=head.weight.to_local().shape[0],
        )


def _whole(weight: Any) -> dict[str, Tensor]:
    return {"weight": weight.detach().full_tensor().clone()}


def _distillation(logs: Any, targets: Any) -> Any:
    """The cross-entropy with probabilities as targets, a mean over rows."""
    return -(targets * logs).sum(-1).mean()


def _loss(name: str) -> Callable[[Mapping[str, Tensor], Any], Tensor]:
    """One of the two losses as a function of the weights, for ``plain_torch``."""

    def loss(weights: Mapping[str, Tensor], rows: tuple[Tensor, Tensor]) -> Tensor:
        import torch

        inputs, targets = rows
        logits = inputs @ weights["weight"].T
        if name == "distillation":
            return cast("Tensor", _distillation(logits.log_softmax(-1), targets))
        return torch.nn.functional.cross_entropy(logits, targets.argmax(-1))

    return loss


def _without_log_softmax(weights: Mapping[str, Tensor], rows: tuple[Tensor, Tensor]) -> Tensor:
    """The loss of distillation, with the identity as the gradient of log_softmax."""
    inputs, targets = rows
    return cast("Tensor", _distillation(inputs @ weights["weight"].T, targets))


def exercised(records: api.Records) -> api.Exercise:
    """The loss was not cross_entropy, and each rank had a part of the classes."""
    loss = records.of("loss", 0)[0]["name"]
    parts = {step.classes for step in records.typed(Step)}
    split = parts == {records.params.classes // len(records.ranks)}
    text = f"the loss was {loss}, with {min(parts)} of {records.params.classes} classes on a rank"
    return api.Exercise.of(split and loss != "cross_entropy", text)
