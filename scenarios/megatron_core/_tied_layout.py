"""Where do the copies of a tied weight lie in the gradient buffers, and who owns which part?

Of four ranks, 0 and 1 are the replicas of the first pipeline stage, 2 and 3 those of the last. Each
stage has a copy of the weight. The owners of a copy are the ranks whose optimizers step with a part
of it. A record ``layout`` has the elements of the buffer that are the copy (``buffer``), those of
its ``bucket``, and the elements of the copy that the rank owns (``owned``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from harness.bugs import api

RANKS, REPLICAS = 4, 2

EDGES = api.many(api.COUNT, 2)
LAYOUT = api.Kind({"buffer": EDGES, "bucket": EDGES, "owned": EDGES})
"""Where the copy is in the buffers."""


def misplaced(records: api.Records) -> Iterator[tuple[int, str]]:
    """By rank, copies that are outside of their bucket."""
    for layout in records.of("layout"):
        rank, place = layout["rank"], layout["buffer"]
        if not layout["bucket"][0] <= place[0] < place[1] <= layout["bucket"][1]:
            yield rank, f"rank {rank}: elements {_range(place)} lie outside of their bucket"


def different(gradients: Sequence[Sequence[float]]) -> bool:
    """Whether each rank has a gradient of its own that is not 0; otherwise none can be missed."""
    distinct = set(map(tuple, gradients))
    return len(gradients) == RANKS == len(distinct) and all(map(any, gradients))


def cut(records: api.Records, *, sharded: bool) -> api.Exercise:
    """The two stages' copies lie at different places of their buffers, and the replicas of each
    stage share its copy. Otherwise a reduced and an unreduced part cannot meet."""
    layouts = records.of("layout")
    if len(layouts) != RANKS:
        return api.Exercise(
            False, f"{len(layouts) or 'none'} of {RANKS} ranks recorded where a copy lies"
        )
    if not sharded:
        return api.Exercise(
            False, "without the distributed optimizer each rank reduces all of a copy"
        )
    places, parts = ([layout[key] for layout in layouts] for key in ("buffer", "owned"))
    front, back = places[0], places[-1]
    lay = f"the tied copies lay at elements {_range(front)} and {_range(back)} of the buffers"
    sizes = [_size(front), _size(back)]
    owned = [sum(map(_size, parts[:REPLICAS])), sum(map(_size, parts[REPLICAS:]))]
    return api.Exercise.of(
        places == [front] * REPLICAS + [back] * REPLICAS and front != back,
        f"{lay} of the first and the last stage",
        f"{lay}, where each stage must have a place of its own",
    ) & api.Exercise.of(
        owned == sizes,
        "the replicas of each stage owned one copy together",
        f"the replicas of the two stages owned {owned[0]} and {owned[1]} elements of their copies, "
        f"which have {sizes[0]} and {sizes[1]}",
    )


def _size(edges: Sequence[int]) -> int:
    return edges[1] - edges[0]


def _range(edges: Sequence[int]) -> str:
    return f"{edges[0]} to {edges[1]}"


def insufficient_checks(group_differs: bool, sums_differ: bool) -> dict[str, bool]:
    """Checks that compare complete gradients: they miss the bug, or fire without it."""
    return {
        "the whole main_grad differs within the embedding group": group_differs,
        "the sums of main_grad on ranks 1 and 2 differ (the report's own check)": sums_differ,
    }
