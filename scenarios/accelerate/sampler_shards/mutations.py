"""What else could be wrong where accelerate shuffles and shards a DataLoader."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from scenarios.common.mutation import mutation

LOADER = "accelerate/data_loader.py"
RANDOM = "accelerate/utils/random.py"
SHARD, ITERATE = "BatchSamplerShard._iter_with_no_split", "DataLoaderShard.__iter__"


def everybody_has_the_first(function: Any) -> Edits:
    """0 in place of the rank, where batches are dealt out."""
    import libcst as cst
    import libcst.matchers as m

    rank = m.Attribute(attr=m.Name("process_index"))
    for loop in m.findall(function, m.For()):
        for mine in m.findall(loop, rank):
            yield mine, cst.Integer("0")


def batch_again(function: Any) -> Edits:
    """The current batch in place of the next one."""
    import libcst as cst
    import libcst.matchers as m

    for step in m.findall(function, m.Assign(value=m.Name("next_batch"))):
        yield step, step.with_changes(value=cst.Name("current_batch"))  # type: ignore[attr-defined]


@mutation("same_batches", LOADER, SHARD, "every rank gets the first rank's batches")
def same_batches(function: Any) -> Edits:
    return everybody_has_the_first(function)


@mutation("batch_again", LOADER, ITERATE, "the first batch of an epoch comes again and again")
def again(function: Any) -> Edits:
    return batch_again(function)


@mutation("first_sample_twice", LOADER, SHARD, "a batch ends with its first sample once more")
def sample_twice(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    for loop in m.findall(function, m.For()):
        for given in m.findall(loop, m.Yield(m.Name("batch_to_yield"))):
            again = cst.parse_expression("batch_to_yield[:-1] + batch_to_yield[:1]")
            yield given, given.with_changes(value=again)  # type: ignore[attr-defined]


@mutation("seeded_alike", RANDOM, "set_seed", "device_specific seeds all ranks alike")
def seeded_alike(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    for more in m.findall(function, m.AugAssign(target=m.Name("seed"))):
        yield more, more.with_changes(value=cst.Integer("0"))  # type: ignore[attr-defined]


@mutation(
    "same_batches", LOADER, SHARD, "every rank gets the first rank's batches", variant="buggy"
)
def buggy_same_batches(function: Any) -> Edits:
    return everybody_has_the_first(function)


@mutation(
    "batch_again",
    LOADER,
    ITERATE,
    "the first batch of an epoch comes again and again",
    variant="buggy",
)
def buggy_again(function: Any) -> Edits:
    return batch_again(function)


MUTATIONS = (same_batches, again, sample_twice, seeded_alike, buggy_same_batches, buggy_again)
