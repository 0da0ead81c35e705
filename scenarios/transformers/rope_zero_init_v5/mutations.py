"""What else could be wrong with the rotary embedding of transformers 5, or under zero.Init."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.mutation import mutation
from scenarios.transformers._rope_mutations import doubled, reflected

LLAMA = "transformers/models/llama/modeling_llama.py"
ZERO = "deepspeed/runtime/zero/partition_parameters.py"
FREQUENCIES = "LlamaRotaryEmbedding.compute_default_rope_parameters"


@mutation(LLAMA, FREQUENCIES, "every frequency is twice the right one")
def doubled_frequencies(function: Any) -> api.Edits:
    return doubled(function)


@mutation(LLAMA, FREQUENCIES, "cosines and sines are scaled by 1.1")
def scaled(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.Assign([m.AssignTarget(m.Name("attention_factor"))])):
        yield node, node.with_changes(value=cst.Float("1.1"))


@mutation(
    LLAMA,
    "LlamaAttention.__init__",
    "attention scores are divided by the fourth root of the dimensions",
)
def scores_too_large(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for node in m.findall(function, m.BinaryOperation(operator=m.Power())):
        yield node, node.with_changes(right=cst.parse_expression("-0.25"))


@mutation(
    ZERO, "zero_wrapper_for_fp_tensor_constructor", "zero.Init leaves alone what its wrappers make"
)
def nothing_cast(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    for node in m.findall(function, m.Call(m.Attribute(attr=m.Name("is_floating_point")))):
        yield node, cst.Name("False")


MUTATIONS = (
    doubled_frequencies,
    scaled,
    reflected,
    scores_too_large,
    nothing_cast,
    replace(doubled_frequencies, variant="buggy"),
    replace(reflected, variant="buggy"),
)
