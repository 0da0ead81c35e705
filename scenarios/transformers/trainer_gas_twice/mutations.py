"""What else could be wrong in a step of the Trainer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.call_edits import without_call, wrapped
from scenarios.common.mutation import mutation

FILE = "transformers/trainer.py"
STEP, LOSSES = "Trainer.training_step", "transformers/loss/loss_utils.py"
LOOP, OLD_LOOP = "Trainer._run_epoch", "Trainer._inner_training_loop"
SHRINK = "(_, [weight.data.mul_(0.999) for weight in model.parameters()])"
FIRST = "each micro-batch of a step is the first one"


@mutation(FILE, STEP, "the loss that is logged is twice the right one")
def log_doubled(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.Return(m.Call(m.Attribute(m.Name("loss"))))):
        yield node, node.with_changes(value=cst.parse_expression("2 * loss.detach()"))


def first_again(function: Any) -> api.Edits:
    """Replace each micro-batch of a step with the first one."""
    import libcst as cst
    import libcst.matchers as m

    again = cst.parse_expression("batch_samples[:1] * len(batch_samples)")
    loop = m.Call(m.Name("enumerate"), [m.Arg(m.Name("batch_samples"))])
    call: Any
    for call in m.findall(function, loop):
        yield call, call.with_changes(args=[cst.Arg(again)])


@mutation(FILE, LOOP, "after each step the weights lose a thousandth")
def weights_shrink(function: Any) -> api.Edits:
    return wrapped(function, "zero_grad", SHRINK)


@mutation(FILE, LOOP, "gradients are not zeroed between steps, and add up")
def gradients_kept(function: Any) -> api.Edits:
    return without_call(function, "zero_grad")


@mutation(FILE, "Trainer._get_grad_norm", "computing the gradient norm also clips the gradient")
def clipped(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    infinite = m.Call(m.Name("float"), [m.Arg(m.SimpleString('"inf"'))])
    for call in m.findall(function, infinite):
        yield call, cst.Float("0.1")


@mutation(LOSSES, "ForCausalLMLoss", "a token is to predict itself, and not the next")
def loss_offset(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    shift = m.Assign(
        targets=[m.AssignTarget(m.Name("shift_labels"))],
        value=m.Call(func=m.Attribute(attr=m.Name("contiguous"))),
    )
    node: Any
    for node in m.findall(function, shift):
        unshifted = cst.parse_expression("labels[..., :-1].contiguous()")
        yield node, node.with_changes(value=unshifted)


MUTATIONS = (
    log_doubled,
    mutation(FILE, LOOP, FIRST)(first_again),
    weights_shrink,
    gradients_kept,
    clipped,
    loss_offset,
    mutation(FILE, OLD_LOOP, FIRST, variant="buggy")(first_again),
    replace(log_doubled, variant="buggy"),
)
