"""What else could be wrong in a training with a tied embedding."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from tests.mutations import mutation
from tests.mutations._calls import left_out, wrapped

BUFFER = "megatron/core/distributed/param_and_grad_buffer.py"
FINALIZE = "megatron/core/distributed/finalize_model_grads.py"
OPTIMIZER = "megatron/core/optimizer/optimizer.py"
SHARDS = "megatron/core/optimizer/distrib_optimizer.py"
SYNC = "_ParamAndGradBucketGroup.start_grad_sync"
EMBEDDING = "_allreduce_embedding_grad"


@mutation("embedding_not_summed", FINALIZE, EMBEDDING,
          "the tied gradient is not summed over the stages")  # fmt: skip
def not_summed(function: Any) -> Edits:
    return left_out(function, "all_reduce")


@mutation("maximum_for_sum", BUFFER, SYNC,
          "over the replicas the maximum is taken, and not the sum")  # fmt: skip
def maximum(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    for name in m.findall(function, m.Attribute(attr=m.Name("SUM"))):
        yield name, name.with_changes(attr=cst.Name("MAX"))


@mutation("gradients_kept", BUFFER, "_ParamAndGradBuffer.reset",
          "gradients are not zeroed between steps, and add up")  # fmt: skip
def kept(function: Any) -> Edits:
    return left_out(function, "zero_")


@mutation("half_the_owners_step", OPTIMIZER, "MixedPrecisionOptimizer.step_with_ready_grads",
          "the first replica of each stage never steps")  # fmt: skip
def half_step(function: Any) -> Edits:
    return wrapped(function, "step", "torch.distributed.get_rank() % 2 and _")


@mutation("signs", SHARDS, "DistributedOptimizer._copy_model_grads_to_main_grads",
          "the optimizer gets the signs of the gradients")  # fmt: skip
def signs(function: Any) -> Edits:
    return wrapped(function, "float", "_.sign()")


@mutation("embedding_not_summed", FINALIZE, EMBEDDING,
          "the tied gradient is not summed over the stages", variant="buggy")  # fmt: skip
def buggy_not_summed(function: Any) -> Edits:
    return left_out(function, "all_reduce")


@mutation("gradients_kept", BUFFER, "_ParamAndGradBuffer.reset",
          "gradients are not zeroed between steps, and add up", variant="buggy")  # fmt: skip
def buggy_kept(function: Any) -> Edits:
    return left_out(function, "zero_")


@mutation("signs", SHARDS, "DistributedOptimizer._copy_model_grads_to_main_grads",
          "the optimizer gets the signs of the gradients", variant="buggy")  # fmt: skip
def buggy_signs(function: Any) -> Edits:
    return wrapped(function, "float", "_.sign()")


MUTATIONS = (
    not_summed, maximum, kept, half_step, signs, buggy_not_summed, buggy_kept, buggy_signs,
)  # fmt: skip
