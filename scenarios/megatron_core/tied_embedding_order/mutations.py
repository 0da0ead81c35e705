"""What else could be wrong where the gradients of a tied embedding are reduced."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.call_edits import with_keyword, without_call
from scenarios.common.mutation import mutation

BUFFER = "megatron/core/distributed/param_and_grad_buffer.py"
WRAPPER = "megatron/core/distributed/distributed_data_parallel.py"
FINALIZE = "megatron/core/distributed/finalize_model_grads.py"
MODULE = "megatron/core/models/common/language_module/language_module.py"
EMBEDDING = "_allreduce_word_embedding_grads"


@mutation(FINALIZE, EMBEDDING, "the tied gradient is not summed over the stages")
def embedding_not_summed(function: Any) -> api.Edits:
    return without_call(function, "all_reduce")


@mutation(FINALIZE, EMBEDDING, "over the stages the maximum is taken, and not the sum")
def maximum_for_sum(function: Any) -> api.Edits:
    return with_keyword(function, "all_reduce", "op", "torch.distributed.ReduceOp.MAX")


@mutation(BUFFER, "Bucket.start_grad_sync", "no gradient is reduced over the replicas")
def no_reduce_scatter(function: Any) -> api.Edits:
    return without_call(function, "_reduce_scatter_base")


@mutation(
    BUFFER,
    "ParamAndGradBuffer.finish_grad_sync",
    "the replicas reduce the tied weight's bucket alone",
)
def tied_bucket_alone(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    tied = cst.parse_expression(
        "[b for b in self.buckets if any(hasattr(p, 'shared_embedding') for p in b.params)]"
    )
    loop: Any
    for loop in m.findall(function, m.For()):
        yield loop, loop.with_changes(iter=tied)


@mutation(
    MODULE,
    "LanguageModule.setup_embeddings_and_output_layer",
    "the last stage's copy stays 0 when the model is built",
)
def copies_not_made_equal(function: Any) -> api.Edits:
    return without_call(function, "all_reduce")


@mutation(WRAPPER, "DistributedDataParallel.__init__", "gradients are kept and reduced in bf16")
def rounded_buffers(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    for choice in m.findall(function, m.IfExp(test=m.Name("accumulate_allreduce_grads_in_fp32"))):
        yield choice, cst.parse_expression("torch.bfloat16")


@mutation(
    WRAPPER,
    "DistributedDataParallel._make_param_hook",
    "the gradients of the layers between are added twice",
    variant="buggy",
)
def layers_twice(function: Any) -> api.Edits:
    return with_keyword(function, "add_", "alpha", "1 + (param.shape[0] == param.shape[1])")


MUTATIONS = (
    embedding_not_summed,
    maximum_for_sum,
    no_reduce_scatter,
    tied_bucket_alone,
    copies_not_made_equal,
    rounded_buffers,
    replace(embedding_not_summed, variant="buggy"),
    replace(maximum_for_sum, variant="buggy"),
    layers_twice,
)
