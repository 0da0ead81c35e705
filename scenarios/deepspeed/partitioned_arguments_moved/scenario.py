"""With partition_activations, an argument that is no tensor moves later ones in the backward pass.

This affects users of DeepSpeed's activation checkpointing with ``partition_activations``, whose
layers have an argument that is no tensor before one that is, such as ``mask=None``. In the backward
pass the layer is called with one ``None`` too many, so that all later arguments are one place
further. The forward pass, and so the loss, is right. If the layer takes one more argument, such as
an optional bias, nothing is raised, and the gradients are those of another function.

Root cause: for each argument DeepSpeed saves a second value: the size of a tensor, or ``None`` if
it is no tensor. ``merge_tensors`` drops the second value of tensors alone.
"""

from __future__ import annotations

from typing import Any

from harness.bugs import api


def every_second(function: Any) -> api.Edits:
    """The second value of each argument is dropped, whether or not it is a tensor."""
    import libcst as cst
    import libcst.matchers as m

    for branch in m.findall(function, m.If(test=m.Name("PARTITION_ACTIVATIONS"))):
        lines = [
            "real_tensor_flags = tensor_flags[::2]",
            "non_tensor_objects = non_tensor_objects[::2]",
        ]
        body = cst.IndentedBlock([cst.parse_statement(line) for line in lines])
        yield branch, cst.ensure_type(branch, cst.If).with_changes(body=body)


def plan(at: api.Position) -> api.Plan:
    """The loss and its gradients for the input and the weight: with checkpointing, in plain torch,
    and of the layer whose arguments have moved."""
    vector = api.many(api.NUMBER, 2 * at.params.size)
    loss = {"loss": api.NUMBER, "right_loss": api.NUMBER}
    return {"layer": api.Kind({**loss, "gradient": vector, "right": vector, "moved": vector})}


def run(ctx: api.Context) -> None:
    """Differentiate a layer under DeepSpeed's checkpointing, and without it."""
    import deepspeed
    import torch
    from deepspeed.runtime.activation_checkpointing import checkpointing

    p = ctx.params
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    checkpointing.configure(
        None,
        partition_activations=p.partition,
        checkpoint_in_cpu=False,
        contiguous_checkpointing=False,
        num_checkpoints=1,
    )
    generator = torch.Generator().manual_seed(ctx.seed)
    x, weight, factor, ones = (
        torch.randn(p.size, generator=generator).to(ctx.device) for _ in range(4)
    )
    mask = torch.ones_like(ones) if p.before == "tensor" else None

    def layer(x: Any, weight: Any, mask: Any, factor: Any, bias: Any = None) -> Any:
        output = x * weight
        if mask is not None:
            output = output * mask
        if factor is not None:
            output = output * factor
        return output if bias is None else output + bias * weight

    def gradient(call: Any) -> tuple[float, list[float]]:
        leaves = [part.clone().requires_grad_() for part in (x, weight)]
        loss = call(*leaves).sum()
        loss.backward()
        parts = [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
        return float(loss.detach()), torch.cat(parts).tolist()

    loss, applied = gradient(lambda *a: checkpointing.checkpoint(layer, *a, mask, factor))
    right_loss, expected = gradient(lambda x, weight: layer(x, weight, mask, factor))
    _, documented = gradient(lambda x, weight: layer(x, weight, mask, None, factor))
    ctx.record(
        "layer",
        loss=loss,
        right_loss=right_loss,
        gradient=applied,
        right=expected,
        moved=documented,
    )


def _far(ones: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


def detect(records: api.Records) -> api.Finding | None:
    """The gradients are those of the layer that was called with one None too many before the
    factor. The loss is right."""
    (layer,) = records.of("layer")
    error = _far(layer["gradient"], layer["right"])
    loss_right = api.near(layer["loss"], layer["right_loss"], within=1e-5)
    if error < 1e-5 and loss_right:
        return None
    return api.Finding(
        f"the gradients are up to {error:.3g} from the right ones, and up to "
        f"{_far(layer['gradient'], layer['moved']):.3g} from those of the moved arguments; the "
        f"loss is {'right' if loss_right else 'wrong'}",
        step=1,
        ranks=records.ranks,
        magnitude=error,
        unit="from the right gradient",
        documented=loss_right and _far(layer["gradient"], layer["moved"]) < 1e-5,
    )


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """The loss is computed in the forward pass."""
    (layer,) = records.of("layer")
    loss_differs = not api.near(layer["loss"], layer["right_loss"], within=1e-5)
    return {"the loss is not that without checkpointing": loss_differs}


picture = api.bars(
    "How far the gradients are from others",
    "without the bug they are the right ones",
    lambda records: [
        (name, _far(records.of("layer")[0]["gradient"], records.of("layer")[0][key]))
        for name, key in (("the right ones", "right"), ("those of moved arguments", "moved"))
    ],
    "at most, of a gradient",
)
