"""What else could be wrong where accelerate shuffles and shards a DataLoader."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.bugs import api
from scenarios.common.mutation import mutation

LOADER = "accelerate/data_loader.py"
RANDOM = "accelerate/utils/random.py"
SHARD, ITERATE = "BatchSamplerShard._iter_with_no_split", "DataLoaderShard.__iter__"


@mutation(LOADER, SHARD, "every rank gets the first rank's batches")
def same_batches(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    rank = m.Attribute(attr=m.Name("process_index"))
    for loop in m.findall(function, m.For()):
        for mine in m.findall(loop, rank):
            yield mine, cst.Integer("0")


@mutation(LOADER, ITERATE, "the first batch of an epoch comes again and again")
def batch_again(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    step: Any
    for step in m.findall(function, m.Assign(value=m.Name("next_batch"))):
        yield step, step.with_changes(value=cst.Name("current_batch"))


@mutation(LOADER, SHARD, "a batch ends with its first sample once more")
def first_sample_twice(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    node: Any
    for loop in m.findall(function, m.For()):
        for node in m.findall(loop, m.Yield(m.Name("batch_to_yield"))):
            twice = cst.parse_expression("batch_to_yield[:-1] + batch_to_yield[:1]")
            yield node, node.with_changes(value=twice)


@mutation(RANDOM, "set_seed", "device_specific seeds all ranks alike")
def seeded_alike(function: Any) -> api.Edits:
    import libcst as cst
    import libcst.matchers as m

    addition: Any
    for addition in m.findall(function, m.AugAssign(target=m.Name("seed"))):
        yield addition, addition.with_changes(value=cst.Integer("0"))


MUTATIONS = (
    same_batches,
    batch_again,
    first_sample_twice,
    seeded_alike,
    replace(same_batches, variant="buggy"),
    replace(batch_again, variant="buggy"),
)
