"""What else could be wrong with the rotary embedding of transformers 5, or under zero.Init."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from scenarios.common.mutation import mutation

LLAMA = "transformers/models/llama/modeling_llama.py"
ZERO = "deepspeed/runtime/zero/partition_parameters.py"
FREQUENCIES = "LlamaRotaryEmbedding.compute_default_rope_parameters"


def doubled(function: Any) -> Edits:
    """2.0 in place of 1.0, which is divided by the powers of the base."""
    import libcst as cst
    import libcst.matchers as m

    for each in m.findall(function, m.BinaryOperation(m.Float("1.0"), m.Divide())):
        yield each, each.with_changes(left=cst.Float("2.0"))  # type: ignore[attr-defined]


def other_way(function: Any) -> Edits:
    """The half without its minus."""
    import libcst.matchers as m

    for each in m.findall(function, m.UnaryOperation(operator=m.Minus(), expression=m.Name("x2"))):
        yield each, each.expression  # type: ignore[attr-defined]


@mutation("doubled_frequencies", LLAMA, FREQUENCIES, "every frequency is twice the right one")
def frequencies(function: Any) -> Edits:
    return doubled(function)


@mutation("scaled", LLAMA, FREQUENCIES, "cosines and sines are scaled by 1.1")
def scaled(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    factor = m.Assign([m.AssignTarget(m.Name("attention_factor"))])
    for each in m.findall(function, factor):
        yield each, each.with_changes(value=cst.Float("1.1"))  # type: ignore[attr-defined]


@mutation("reflected", LLAMA, "rotate_half", "queries and keys are reflected, and not turned")
def reflected(function: Any) -> Edits:
    return other_way(function)


@mutation(
    "scores_too_large",
    LLAMA,
    "LlamaAttention.__init__",
    "attention scores are divided by the fourth root of the dimensions",
)
def too_large(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    for each in m.findall(function, m.BinaryOperation(operator=m.Power())):
        yield each, each.with_changes(right=cst.parse_expression("-0.25"))  # type: ignore[attr-defined]


@mutation(
    "nothing_cast",
    ZERO,
    "zero_wrapper_for_fp_tensor_constructor",
    "zero.Init leaves alone what its wrappers make",
)
def left_alone(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    for each in m.findall(function, m.Call(m.Attribute(attr=m.Name("is_floating_point")))):
        yield each, cst.Name("False")


@mutation(
    "doubled_frequencies",
    LLAMA,
    FREQUENCIES,
    "every frequency is twice the right one",
    variant="buggy",
)
def buggy_frequencies(function: Any) -> Edits:
    return doubled(function)


@mutation(
    "reflected",
    LLAMA,
    "rotate_half",
    "queries and keys are reflected, and not turned",
    variant="buggy",
)
def buggy_reflected(function: Any) -> Edits:
    return other_way(function)


MUTATIONS = (
    frequencies,
    scaled,
    reflected,
    too_large,
    left_alone,
    buggy_frequencies,
    buggy_reflected,
)
