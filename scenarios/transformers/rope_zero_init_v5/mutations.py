"""What else could be wrong with the rotary embedding of transformers 5, or under zero.Init."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness import api
from scenarios.common.mutation import mutation
from scenarios.transformers._rope_mutations import doubled, reflected

LLAMA = "transformers/models/llama/modeling_llama.py"
ZERO = "deepspeed/runtime/zero/partition_parameters.py"
FREQUENCIES = "LlamaRotaryEmbedding.compute_default_rope_parameters"


@mutation("doubled_frequencies", LLAMA, FREQUENCIES, "every frequency is twice the right one")
def frequencies(function: Any) -> api.Edits:
    return doubled(function)


@mutation("scaled", LLAMA, FREQUENCIES, "cosines and sines are scaled by 1.1")
def scaled(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.Assign([m.AssignTarget(m.Name("attention_factor"))])):
        yield node, node.with_changes(value=cst.Float("1.1"))


@mutation(
    "scores_too_large",
    LLAMA,
    "LlamaAttention.__init__",
    "attention scores are divided by the fourth root of the dimensions",
)
def too_large(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.BinaryOperation(operator=m.Power())):
        yield node, node.with_changes(right=cst.parse_expression("-0.25"))


@mutation(
    "nothing_cast",
    ZERO,
    "zero_wrapper_for_fp_tensor_constructor",
    "zero.Init leaves alone what its wrappers make",
)
def left_alone(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.Call(m.Attribute(attr=m.Name("is_floating_point")))):
        yield node, cst.Name("False")


MUTATIONS = (
    frequencies,
    scaled,
    reflected,
    too_large,
    left_alone,
    replace(frequencies, variant="buggy"),
    replace(reflected, variant="buggy"),
)
