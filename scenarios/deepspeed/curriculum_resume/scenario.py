"""The curriculum sampler's checkpoint lacks its generator: a resumed run sees other batches.

DeepSpeed's data efficiency library draws batches with ``DeepSpeedDataSampler``. Its state is in the
engine's checkpoints. After a resume the rows of the running epoch are complete, but the order in
which they come, and all later epochs, are not those of a run without a stop: a resumed run repeats
the random numbers that the first one began with. The load also sets the global generator of numpy,
which other code may use.

Root cause: the sampler draws from a generator of its own, ``self.np_rng``. But ``state_dict`` saves
``np.random.get_state()``, the state of numpy's global generator, which the sampler never uses, and
``load_state_dict`` restores that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued


def own_saved(function: Any) -> api.Edits:
    """The state of the sampler's own generator is saved."""
    import libcst as cst
    import libcst.matchers as m

    saved = m.Call(m.Attribute(attr=m.Name("get_state")))
    for call in m.findall(function, saved):
        yield call, cst.parse_expression("self.np_rng.bit_generator.state")


def own_loaded(function: Any) -> api.Edits:
    """The state of the sampler's own generator is loaded."""
    import libcst as cst
    import libcst.matchers as m

    for call in m.findall(function, m.Call(m.Attribute(attr=m.Name("set_state")))):
        (state,) = cst.ensure_type(call, cst.Call).args
        setting = cst.parse_expression("setattr(self.np_rng.bit_generator, 'state', _)")
        yield call, setting.deep_replace(m.findall(setting, m.Name("_"))[0], state.value)


def order_alone(
    steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records
) -> bool:
    """Until the end of the running epoch, both ranks together have the rows of the same step
    without a stop. Each complete epoch after it has each row once."""
    p, ranks = records.params, records.ranks
    remainder = -p.done % (p.rows // len(ranks))
    launches = [
        [continued.of(records, launch, rank)[start : start + remainder] for rank in ranks]
        for launch, start in ((continued.RESUMED, 0), (continued.WHOLE, p.done))
    ]
    together = [
        [sorted(step["row"] for step in at_once) for at_once in zip(*of_ranks, strict=True)]
        for of_ranks in launches
    ]
    return together[0] == together[1] and not any(insufficient_checks(records).values())


oracle = continued.Continued(
    order_alone,
    facts=lambda at: {"row": api.COUNT},
    fact="row",
    noun="row",
    unit="between the numbers of two rows",
)


def run(ctx: api.Context) -> None:
    """Draw batches, save, and go on; or load, and draw the rest."""
    import shutil
    from copy import deepcopy

    import deepspeed
    import torch
    import torch.distributed as dist

    p = ctx.params
    deepspeed.init_distributed(dist_backend=ctx.lane.backend)
    clusters, saved = ctx.folder / "clusters", ctx.folder / "saved"
    file, start = ctx.folder / f"state_{ctx.rank}.pt", 0
    if ctx.launch == continued.RESUMED:
        sampler, start = _sampler(ctx, str(saved)), p.done
        state, generator = torch.load(file, weights_only=False)
        sampler.load_state_dict(state)
        if p.beside:
            sampler.np_rng.bit_generator.state = generator
    else:
        sampler = _sampler(ctx, str(clusters))
    batches = iter(sampler)
    for step in range(start + 1, p.done + p.more + 1):
        (row,) = next(batches)
        ctx.record("step", step, row=int(row))
        if ctx.launch == continued.WHOLE and step == p.done:
            generator = sampler.np_rng.bit_generator.state
            torch.save((deepcopy(sampler.state_dict()), generator), file)
            if ctx.rank == 0:  # a copy, because the sampler rewrites its files in each epoch
                shutil.copytree(clusters, saved)
    dist.barrier()


def _sampler(ctx: api.Context, folder: str) -> Any:
    """DeepSpeed's sampler, one row for each rank and step, with one cluster of all rows."""
    import deepspeed
    from deepspeed.runtime.data_pipeline.data_sampling.data_sampler import DeepSpeedDataSampler

    metric = {
        "difficulty_type": "value",
        "clustering_type": "single_cluster",
        "min_difficulty": 1,
        "max_difficulty": 10,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 100, "difficulty_step": 1},
    }
    learning = {
        "enabled": True,
        "data_cluster_path": folder,
        "curriculum_metrics": {"length": metric},
    }
    config = {
        "seed": ctx.seed + 1,
        "data_sampling": {"enabled": True, "num_epochs": 10, "curriculum_learning": learning},
    }
    group = deepspeed.comm.new_group(list(range(ctx.world_size)))
    return DeepSpeedDataSampler(
        config, ctx.params.rows, 1, ctx.rank, ctx.world_size, group, 1, ctx.rank
    )


def _rows(records: api.Records) -> list[list[int]]:
    """The rows of each complete epoch after the resume, of all ranks."""
    p, ranks = records.params, records.ranks
    length = p.rows // len(ranks)
    steps = [
        [continued.of(records, continued.RESUMED, rank)[n]["row"] for rank in ranks]
        for n in range(-p.done % length, p.more)
    ]
    return [
        [row for step in steps[start : start + length] for row in step]
        for start in range(0, len(steps) - length + 1, length)
    ]


def insufficient_checks(records: api.Records) -> dict[str, bool]:
    """Each epoch after the resume has each row once."""
    whole = [sorted(rows) == list(range(records.params.rows)) for rows in _rows(records)]
    return {"an epoch after the resume has not each row once": not all(whole)}
