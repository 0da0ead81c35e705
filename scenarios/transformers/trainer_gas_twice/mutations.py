"""What else could be wrong in a step of the Trainer."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from scenarios.common.edits import without_call, wrapped
from scenarios.common.mutation import mutation

FILE = "transformers/trainer.py"
STEP, LOSSES = "Trainer.training_step", "transformers/loss/loss_utils.py"
LOOP, OLD_LOOP = "Trainer._run_epoch", "Trainer._inner_training_loop"
SHRINK = "(_, [weight.data.mul_(0.999) for weight in model.parameters()])"


def first_again(function: Any) -> Edits:
    """The first micro-batch of a step in place of each."""
    import libcst as cst

    again = cst.parse_expression("batch_samples[:1] * len(batch_samples)")
    for call in _of(function, "enumerate", "batch_samples"):
        yield call, call.with_changes(args=[cst.Arg(again)])


def _of(function: Any, name: str, argument: str) -> list[Any]:
    import libcst.matchers as m

    return list(m.findall(function, m.Call(m.Name(name), [m.Arg(m.Name(argument))])))


@mutation("log_doubled", FILE, STEP, "the loss that is logged is twice the right one")
def log_doubled(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    for given in m.findall(function, m.Return(m.Call(m.Attribute(m.Name("loss"))))):
        twice = cst.parse_expression("2 * loss.detach()")
        yield given, given.with_changes(value=twice)  # type: ignore[attr-defined]


@mutation("first_again", FILE, LOOP, "each micro-batch of a step is the first one")
def same_rows(function: Any) -> Edits:
    return first_again(function)


@mutation("weights_shrink", FILE, LOOP, "after each step the weights lose a thousandth")
def shrink(function: Any) -> Edits:
    return wrapped(function, "zero_grad", SHRINK)


@mutation("gradients_kept", FILE, LOOP, "gradients are not zeroed between steps, and add up")
def kept(function: Any) -> Edits:
    return without_call(function, "zero_grad")


@mutation("clipped", FILE, "Trainer._get_grad_norm", "asking for the norm clips the gradient")
def clipped(function: Any) -> Edits:
    import libcst as cst

    for call in _infinite(function):
        yield call, cst.Float("0.1")


def _infinite(function: Any) -> list[Any]:
    import libcst.matchers as m

    return list(m.findall(function, m.Call(m.Name("float"), [m.Arg(m.SimpleString('"inf"'))])))


@mutation(
    "loss_offset", LOSSES, "ForCausalLMLoss", "a token is to predict itself, and not the next"
)
def offset(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    shift = m.Assign(
        targets=[m.AssignTarget(m.Name("shift_labels"))],
        value=m.Call(func=m.Attribute(attr=m.Name("contiguous"))),
    )
    for each in m.findall(function, shift):
        unshifted = cst.parse_expression("labels[..., :-1].contiguous()")
        yield each, each.with_changes(value=unshifted)  # type: ignore[attr-defined]


@mutation(
    "first_again", FILE, OLD_LOOP, "each micro-batch of a step is the first one", variant="buggy"
)
def buggy_same_rows(function: Any) -> Edits:
    return first_again(function)


@mutation(
    "log_doubled", FILE, STEP, "the loss that is logged is twice the right one", variant="buggy"
)
def buggy_log_doubled(function: Any) -> Edits:
    return log_doubled.defect.edit(function)


MUTATIONS = (
    log_doubled,
    same_rows,
    shrink,
    kept,
    clipped,
    offset,
    buggy_same_rows,
    buggy_log_doubled,
)
