"""What else could be wrong with LLaMA's rotary embedding, or under zero.Init."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.call_edits import calls
from scenarios.common.mutation import mutation
from scenarios.transformers._rope_mutations import doubled, reflected

LLAMA = "transformers/models/llama/modeling_llama.py"
ZERO = "deepspeed/runtime/zero/partition_parameters.py"
ROTARY = "LlamaRotaryEmbedding"
BUILT, FORWARD, CACHE = (f"{ROTARY}.{n}" for n in ("__init__", "forward", "_set_cos_sin_cache"))
WRAPPERS = "InsertPostInitMethodToModuleSubClasses._add_tensor_creation_wrappers"
SINES = "the cosines that the layers get are the sines"


@mutation(LLAMA, BUILT, "every frequency is twice the right one")
def doubled_frequencies(function: Any) -> api.Edits:
    return doubled(function)


def sines_for_cosines(function: Any) -> api.Edits:
    """Replace the cosine with the sine."""
    import libcst as cst

    for call in calls(function, "cos"):
        yield call, call.with_changes(func=call.func.with_changes(attr=cst.Name("sin")))


@mutation(ZERO, "Init._partition_param", "every rank keeps the first part of each weight")
def first_part_everywhere(function: Any) -> api.Edits:
    import libcst as cst

    for call in calls(function, "get_partition_rank"):
        yield call, cst.Integer("0")


@mutation(ZERO, WRAPPERS, "zero.Init does not touch arange")
def arange_left_alone(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    wrapped = m.Call(args=[m.Arg(m.Name("_orig_torch_arange")), m.ZeroOrMore()])
    for call in m.findall(function, wrapped):
        yield call, cst.Name("_orig_torch_arange")


MUTATIONS = (
    doubled_frequencies,
    mutation(LLAMA, FORWARD, SINES)(sines_for_cosines),
    reflected,
    first_part_everywhere,
    arange_left_alone,
    mutation(LLAMA, CACHE, SINES, variant="buggy")(sines_for_cosines),
    replace(reflected, variant="buggy"),
)
