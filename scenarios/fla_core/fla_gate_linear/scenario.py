"""The fused norm, gate and projection computes the projection's gradient without the gate.

``FusedRMSNormSwishGateLinear`` and ``FusedLayerNormSwishGateLinear`` join three layers that follow
linear attention: a norm, a gate by ``silu``, and a linear layer. The outputs are right, and so are
the gradients of the input, of the gate and of the norm. But the gradient of the linear layer's
weight is computed from the normed values before the gate. So the weight is trained for inputs that
it never has: it learns most from what the gate lets through least. The reported gradient has
about the right size, so that neither the loss nor the gradient norm looks wrong.

Root cause: to save memory, the backward pass computes the input of the linear layer again. The
kernel ``layer_norm_gated_bwd_kernel`` stores it before it multiplies by the gate. Since 0.6.0 it
stores the gated value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api
from scenarios.common import kernels

if TYPE_CHECKING:
    from torch import Tensor


WIDTH, OUT, EPSILON = 32, 16, 1e-5


def gated_values(kernel: Any) -> api.Edits:
    """Multiply the values that the kernel stores for the linear layer by the gate."""
    import libcst as cst
    import libcst.matchers as m

    stored = m.Arg(m.Call(m.Attribute(m.Name("b_y"), m.Name("to"))))
    for argument in m.findall(kernel, stored):
        gated = "(b_y * b_g * tl.sigmoid(b_g)).to(p_y.dtype.element_ty)"
        yield argument, argument.with_changes(value=cst.parse_expression(gated))


def normed(x: Tensor, norm: Tensor) -> Tensor:
    """Plain torch's RMS norm."""
    return x * (x.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * norm


def plain(x: Tensor, gate: Tensor, norm: Tensor, linear: Tensor) -> Tensor:
    """The three layers in plain torch."""
    import torch

    return (normed(x, norm) * torch.nn.functional.silu(gate)) @ linear.T


def without_gate(inputs: dict[str, Tensor], gradient: Tensor) -> kernels.Results:
    """Only the gradient of the linear weight is wrong: it is the one for inputs that did not pass
    the gate."""
    return {"linear": gradient.T @ normed(inputs["x"], inputs["norm"])}


oracle = kernels.Kernel(
    without_gate, "exactly that follows if the gate is left out of the linear layer's input"
)


def run(ctx: api.Context) -> None:
    """Compute the layers, and the gradients of a weighted sum of their outputs."""
    from fla.modules import fused_norm_gate as upstream

    kernels.keep_one_configuration("fla")

    p = ctx.params

    def fused(x: Tensor, gate: Tensor, norm: Tensor, linear: Tensor) -> Any:
        if p.fused:
            return upstream.rms_norm_swish_gate_linear(
                x, gate, norm, None, linear, None, eps=EPSILON
            )
        return upstream.rms_norm_gated(x, gate, norm, None, eps=EPSILON) @ linear.T

    sizes = {
        "x": (p.rows, WIDTH),
        "gate": (p.rows, WIDTH),
        "norm": (WIDTH,),
        "linear": (OUT, WIDTH),
    }
    for step in api.each(p.steps):
        inputs = kernels.random(ctx, step, **sizes)
        weights = kernels.random(ctx, -step, y=(p.rows, OUT))["y"]
        kernels.record(
            ctx,
            step,
            computed=kernels.results(fused, inputs, weights),
            right=kernels.results(plain, inputs, weights),
            documented=without_gate(inputs, weights),
        )
