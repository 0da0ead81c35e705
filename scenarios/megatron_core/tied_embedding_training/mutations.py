"""What else could be wrong in a training with a tied embedding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.call_edits import without_call, wrapped
from scenarios.common.mutation import mutation

BUFFER = "megatron/core/distributed/param_and_grad_buffer.py"
FINALIZE = "megatron/core/distributed/finalize_model_grads.py"
OPTIMIZER = "megatron/core/optimizer/optimizer.py"
SHARDS = "megatron/core/optimizer/distrib_optimizer.py"
SYNC = "_ParamAndGradBucketGroup.start_grad_sync"
EMBEDDING = "_allreduce_embedding_grad"


@mutation(FINALIZE, EMBEDDING, "the tied gradient is not summed over the stages")
def embedding_not_summed(function: Any) -> api.Edits:
    return without_call(function, "all_reduce")


@mutation(BUFFER, SYNC, "over the replicas the maximum is taken, and not the sum")
def maximum_for_sum(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    name: Any
    for name in m.findall(function, m.Attribute(attr=m.Name("SUM"))):
        yield name, name.with_changes(attr=cst.Name("MAX"))


@mutation(BUFFER, "_ParamAndGradBuffer.reset", "gradients are not zeroed between steps, and add up")
def gradients_kept(function: Any) -> api.Edits:
    return without_call(function, "zero_")


@mutation(
    OPTIMIZER,
    "MixedPrecisionOptimizer.step_with_ready_grads",
    "the first replica of each stage never steps",
)
def half_the_owners_step(function: Any) -> api.Edits:
    return wrapped(function, "step", "torch.distributed.get_rank() % 2 and _")


@mutation(
    SHARDS,
    "DistributedOptimizer._copy_model_grads_to_main_grads",
    "the optimizer gets the signs of the gradients",
)
def signs(function: Any) -> api.Edits:
    return wrapped(function, "float", "_.sign()")


MUTATIONS = (
    embedding_not_summed,
    maximum_for_sum,
    gradients_kept,
    half_the_owners_step,
    signs,
    replace(embedding_not_summed, variant="buggy"),
    replace(gradients_kept, variant="buggy"),
    replace(signs, variant="buggy"),
)
