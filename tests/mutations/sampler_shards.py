"""What else could be wrong where accelerate shuffles and shards a DataLoader."""

from __future__ import annotations

from typing import Any

from harness.spec import Edits
from tests.mutations import mutation
from tests.mutations._calls import calls

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


@mutation("same_order", RANDOM, "synchronize_rng_state",
          "every epoch is shuffled with the same seed")  # fmt: skip
def same_order(function: Any) -> Edits:
    import libcst as cst

    for call in calls(function, "set_state"):
        yield call, cst.parse_expression("generator.manual_seed(1)")


@mutation("seeded_alike", RANDOM, "set_seed", "device_specific seeds all ranks alike")
def seeded_alike(function: Any) -> Edits:
    import libcst as cst
    import libcst.matchers as m

    for more in m.findall(function, m.AugAssign(target=m.Name("seed"))):
        yield more, more.with_changes(value=cst.Integer("0"))  # type: ignore[attr-defined]


@mutation("same_batches", LOADER, SHARD, "every rank gets the first rank's batches",
          variant="buggy")  # fmt: skip
def buggy_same_batches(function: Any) -> Edits:
    return everybody_has_the_first(function)


@mutation("batch_again", LOADER, ITERATE, "the first batch of an epoch comes again and again",
          variant="buggy")  # fmt: skip
def buggy_again(function: Any) -> Edits:
    return batch_again(function)


MUTATIONS = (same_batches, again, same_order, seeded_alike, buggy_same_batches, buggy_again)
