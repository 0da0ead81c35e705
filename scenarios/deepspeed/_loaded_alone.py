"""Loads of weights without the optimizer's state, from a folder with checkpoints under two tags.

The launch ``train`` saves ``EARLIER``, trains on, and saves ``LATER``. The launch ``load`` loads a
tag into a new engine, and records ``loaded`` with the distances of its weights from those of both
saves, and from its own before the load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.bugs import api

if TYPE_CHECKING:
    from torch import Tensor

TRAIN = "train"
EARLIER, LATER = TAGS = ("earlier", "later")
FRESH = "new engine"
"""The weights of the new engine before the load."""


def plan(at: api.Position) -> api.Plan:
    """The losses before each save; or what was loaded, and the loss on the next rows."""
    if at.launch == TRAIN:
        return {"step": api.Kind({"loss": api.NUMBER}, api.each(2 * at.params.steps))}
    loaded = {
        **dict.fromkeys((*TAGS, FRESH), api.alike(api.SIZE)),
        "apart": api.alike(api.by_name(api.SIZE)),
        "steps": api.alike(api.COUNT),
        "loss": api.NUMBER,
    }
    return {"loaded": api.Kind(loaded)}


def run(ctx: api.Context, tag: str, **how: bool) -> None:
    """Train and save twice; or load the save of a tag, with ``how`` for ``load_checkpoint``."""
    import os

    import torch

    from scenarios.common import linear
    from scenarios.deepspeed import _regression as regression
    from scenarios.deepspeed import _restored as restored

    p = ctx.params
    # The ranks of this machine. Without it, releases before 0.16 ask numactl, which many lack.
    os.environ.setdefault("LOCAL_SIZE", str(ctx.world_size))
    with ctx.phase("init"):
        engine = restored.engine(ctx, p.lr, zero_optimization={"stage": p.stage})
    data = restored.rows(ctx, 2 * p.steps + 1)
    folder, beside = str(ctx.folder / "checkpoints"), ctx.folder / f"beside_{ctx.rank}.pt"
    if ctx.launch == TRAIN:
        saves = {}
        for number, rows in enumerate(data[:-1], 1):
            ctx.record("step", number, loss=regression.step(ctx, engine, rows))
            if number % p.steps == 0:
                name = TAGS[number // p.steps - 1]
                saves[name] = _weights(engine)
                engine.save_checkpoint(folder, tag=name, client_state={"steps": number})
        torch.save(saves, beside)
        return
    saves = {**torch.load(beside, map_location=ctx.device), FRESH: _weights(engine)}
    _, client = engine.load_checkpoint(folder, tag=tag, **how)
    after = _weights(engine)
    inputs, labels = (part.chunk(ctx.world_size)[ctx.rank] for part in data[-1])
    with torch.no_grad():
        loss = linear.loss(engine(inputs), labels)
    ctx.record(
        "loaded",
        **{name: _distance(after, weights) for name, weights in saves.items()},
        apart={other: _distance(saves[tag], saves[other]) for other in saves},
        steps=client["steps"],
        loss=float(loss),
    )


def _weights(engine: Any) -> dict[str, Tensor]:
    """A copy of the whole weights, which ZeRO 3 spreads over the ranks; a collective call."""
    import deepspeed

    parts = list(engine.module.parameters())
    with deepspeed.zero.GatheredParameters(parts, enabled=hasattr(parts[0], "ds_id")):
        return {n: p.detach().clone() for n, p in engine.module.named_parameters()}


def _distance(ones: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """The greatest difference between weights of the same name."""
    return max(float((one - others[name]).abs().max()) for name, one in ones.items())


def otherwise(records: api.Records, tag: str, name: str, meaning: str) -> api.Finding | None:
    """The finding that the weights are not those of the tag; it is documented if they are those of
    ``name``."""
    loaded = records.of("loaded")[0]
    if loaded[tag] == 0:
        return None
    others = ", ".join(f"{loaded[n]:.3g} from '{n}'" for n in (EARLIER, LATER, FRESH))
    return api.Finding(
        f"'{tag}' was loaded, and client_state is of step {loaded['steps']}; but weights are up to "
        f"{others}: {meaning}",
        step=0,
        ranks=records.ranks,
        magnitude=loaded[tag],
        unit="between a loaded weight and the saved one",
        documented=loaded[name] == 0,
    )


def at_stage_3(records: api.Records) -> api.Exercise:
    """The weights were spread over the ranks."""
    stage = records.params.stage
    return api.Exercise.of(stage == 3, f"the ZeRO stage was {stage}")


def differed(records: api.Records, tag: str, name: str) -> api.Exercise:
    """The weights of the tag were other ones than those of ``name``."""
    apart = records.of("loaded")[0]["apart"][name]
    text = f"the weights of '{tag}' and '{name}' were up to {apart:.3g} apart"
    return api.Exercise.of(apart > 0, text)


def client_state_wrong(records: api.Records, tag: str) -> dict[str, bool]:
    """What ``load_checkpoint`` returns is of the tag that was asked for."""
    steps = records.params.steps * (TAGS.index(tag) + 1)
    differs = any(loaded["steps"] != steps for loaded in records.of("loaded"))
    return {"client_state is not that of the tag": differs}


distances = api.bars(
    "Distance of the loaded weights from others",
    f"without the bug the weights are those of '{EARLIER}', at a distance of 0",
    lambda records: [
        (name, float(records.of("loaded")[0][name])) for name in (EARLIER, LATER, FRESH)
    ],
    "at most, of a weight",
)
