"""What else could be wrong with LLaMA's rotary embedding, or under zero.Init."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from scenarios.common.edits import calls
from scenarios.common.mutation import mutation
from scenarios.transformers.rope_zero_init_v5.mutations import doubled, other_way

LLAMA = "transformers/models/llama/modeling_llama.py"
ZERO = "deepspeed/runtime/zero/partition_parameters.py"
BUILT = "LlamaRotaryEmbedding.__init__"
WRAPPERS = "InsertPostInitMethodToModuleSubClasses._add_tensor_creation_wrappers"


def sines(function: Any) -> Edits:
    """The sine in place of the cosine."""
    import libcst as cst

    for call in calls(function, "cos"):
        yield call, call.with_changes(func=call.func.with_changes(attr=cst.Name("sin")))


@mutation("doubled_frequencies", LLAMA, BUILT, "every frequency is twice the right one")
def frequencies(function: Any) -> Edits:
    return doubled(function)


@mutation(
    "sines_for_cosines",
    LLAMA,
    "LlamaRotaryEmbedding.forward",
    "the cosines that the layers get are the sines",
)
def no_cosines(function: Any) -> Edits:
    return sines(function)


@mutation("reflected", LLAMA, "rotate_half", "queries and keys are reflected, and not turned")
def reflected(function: Any) -> Edits:
    return other_way(function)


@mutation(
    "first_part_everywhere",
    ZERO,
    "Init._partition_param",
    "every rank keeps the first part of each weight",
)
def first_part(function: Any) -> Edits:
    import libcst as cst

    for call in calls(function, "get_partition_rank"):
        yield call, cst.Integer("0")


@mutation("arange_left_alone", ZERO, WRAPPERS, "zero.Init does not touch arange")
def left_alone(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    wrapped = m.Call(args=[m.Arg(m.Name("_orig_torch_arange")), m.ZeroOrMore()])
    for call in m.findall(function, wrapped):
        yield call, cst.Name("_orig_torch_arange")


@mutation(
    "sines_for_cosines",
    LLAMA,
    "LlamaRotaryEmbedding._set_cos_sin_cache",
    "the cosines that the layers get are the sines",
    variant="buggy",
)
def buggy_no_cosines(function: Any) -> Edits:
    return sines(function)


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
    no_cosines,
    reflected,
    first_part,
    left_alone,
    buggy_no_cosines,
    buggy_reflected,
)
