"""A DTensor split unevenly over two dimensions of a flattened mesh loses rows when it is gathered.

This affects users who split a tensor by rows over two dimensions of a mesh, and have called
``_flatten`` on these. If the ranks do not divide the rows, what is gathered has rows of zeros in
its middle, and the last rows are lost. Forward passes and checkpoints then have other weights than
the ranks. Nothing is raised. Here one of five rows is lost on 2 x 2 ranks.

Root cause: since torch knows the flattened mesh, one ``all_gather`` over it replaces one for each
dimension. This gather pads, and cuts the padding off, as if the rows were split once over all
ranks. Split once per dimension, the ranks have other rows: 2, 1, 1, 1 of five instead of 2, 2, 1,
0. For ``reduce_scatter`` the same function refuses uneven rows.

The fixed variant does what upstream's open pull request 194457 proposes: it refuses them for
``all_gather``, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from harness.bugs import api
from scenarios.common.line_edits import setting

FEATURES = 3


def even_only(function: Any) -> api.Edits:
    """Where the dimension is chosen that is gathered, give up if it is uneven."""
    import libcst as cst
    import libcst.matchers as m

    size = "max(info.logical_shape[affected_dim] for info in infos)"
    ranks = "math.prod(device_mesh.size(info.mesh_dim) for info in infos)"
    refuse = f'if {size} % {ranks}: return None, "uneven_tensor_shape"'
    for line in setting(function, "affected_dim"):
        if m.findall(line, m.Name("src")):
            yield line, cst.FlattenSentinel([line, cst.parse_statement(refuse)])


def plan(at: api.Position) -> api.Plan:
    """The first column of the weight in each step: what each rank has of it, and gathered."""
    column = api.many(api.NUMBER)
    facts = {"parts": api.many(column, at.world_size), "gathered": api.many(api.NUMBER)}
    return {"step": api.Kind(facts, api.each(at.params.steps))}


def run(ctx: api.Context) -> None:
    """Train a linear map whose weight is split over two dimensions of a mesh, and is gathered."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    p = ctx.params
    dist.init_process_group(ctx.lane.backend)
    shape = (2, ctx.world_size // 2)
    mesh = init_device_mesh(ctx.device.type, shape, mesh_dim_names=("replica", "shard"))
    if p.flatten:
        mesh._flatten("all")
    generator = torch.Generator().manual_seed(ctx.seed + 1)
    shapes = (8, FEATURES), (8, p.rows), (p.rows, FEATURES)
    inputs, labels, start = (torch.randn(s, generator=generator).to(ctx.device) for s in shapes)
    weight: Any = torch.nn.Parameter(distribute_tensor(start, mesh, [Shard(0), Shard(0)]))
    optimizer = torch.optim.SGD([weight], lr=p.lr)
    for step in api.each(p.steps):
        whole: Any = weight.redistribute(placements=[Replicate(), Replicate()]).to_local()
        parts: list[Any] = [None] * ctx.world_size
        dist.all_gather_object(parts, weight.to_local()[:, 0].tolist())
        ctx.record("step", step, parts=parts, gathered=whole[:, 0].tolist())
        (inputs @ whole.T - labels).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _whole(parts: Sequence[Sequence[float]]) -> list[float]:
    return [value for part in parts for value in part]


def _split_once(parts: Sequence[Sequence[float]], rows: int) -> list[float]:
    """What a gather brings that takes the rows as split once: each part is padded to the longest,
    and the end is cut off."""
    longest = -(-rows // len(parts))
    return _whole([[*part, *[0.0] * (longest - len(part))] for part in parts])[:rows]


def detect(records: api.Records) -> api.Finding | None:
    """The gathered rows are those of the ranks with padding in between, and without the last."""
    steps = records.of("step")
    wrong = [step for step in steps if step["gathered"] != _whole(step["parts"])]
    if not wrong:
        return None
    rows = records.params.rows
    lost = len(set(_whole(wrong[0]["parts"])) - set(wrong[0]["gathered"]))
    return api.Finding(
        f"{lost} of {rows} rows are lost when the weight is gathered, in {len(wrong)} of "
        f"{len(steps)} records",
        step=min(step["step"] for step in wrong),
        ranks=tuple(sorted({step["rank"] for step in wrong})),
        magnitude=lost / rows,
        unit="of the rows",
        documented=len(wrong) == len(steps)
        and all(step["gathered"] == _split_once(step["parts"], rows) for step in wrong),
    )


def exercised(records: api.Records) -> api.Exercise:
    """The mesh was flattened, and ranks had other rows than if the rows were split once."""
    rows, first = records.params.rows, records.of("step")[0]["parts"]
    counts = [len(part) for part in first]
    once = _split_once(first, rows) == _whole(first)
    text = f"the mesh was{'' if records.params.flatten else ' not'} flattened, and ranks had "
    return api.Exercise.of(records.params.flatten and not once, f"{text}{counts} rows")


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """What many would compare."""
    steps = records.of("step")
    ranks = [[step["gathered"] for step in steps if step["rank"] == rank] for rank in records.ranks]
    return {
        "the ranks gather other weights": any(each != ranks[0] for each in ranks),
        "the gathered weight has another shape": any(
            len(step["gathered"]) != records.params.rows for step in steps
        ),
    }


def picture(trials: api.Trials) -> Iterator[api.Picture]:
    """The gathered rows of the first step."""
    bars = [
        (variant, f"row {row}", value)
        for variant, records in trials.items()
        for row, value in enumerate(records.of("step", 0)[0]["gathered"])
    ]
    title = "First column of the weight, gathered"
    yield api.Bars(title, "with the bug a row is 0, and the last is lost", bars)
