"""Is the state after a load the state before the save, on every rank?

Two launches, each in new processes. *train* takes steps, dumps the complete state of every rank,
saves a checkpoint, and takes one step more. *resume* loads the checkpoint, compares with the dump,
and takes the same step. fp32 master copies are compared where the optimizer keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.bugs import api
from scenarios.common import copies

LAUNCHES = ("train", "resume")
TAG = "saved"
MASTER = " (fp32)"
"""The names of fp32 master copies end with this."""

JUMP = 0.05
"""A loss must be so much (nats) above that without a restart to be noticed in a log."""


_CHANGE = {
    "name": api.LINE,
    "about": api.matching(r"\d+ of \d+ values differ, by up to [ -~]*", "change"),
    "greatest": api.SIZE,
    "place": api.many(api.COUNT),
    "before": api.NUMBER,
    "after": api.NUMBER,
}
LOADED = {
    "compared": api.COUNT,
    "masters": api.COUNT,
    "trained": api.many(api.LINE, least=1),
    "changed": api.many(api.held({**_CHANGE, "reset": api.FLAG})),
    "tied": api.alike(copies.DRIFT),
    "tied_masters": api.alike(copies.DRIFTS),
}


def plan(at: api.Position, steps: int, step: api.Facts) -> api.Plan:
    """What ``run`` records in a launch; ``step`` has the facts of the trainer's steps, including
    those of ``stepped``, and ``drift``."""
    if at.launch == "train":
        return {
            "step": api.Kind(step, api.each(steps + 1)),
            "drift": api.Kind({"tied": api.alike(copies.DRIFTS)}, [steps]),
        }
    return {
        "loaded": api.Kind(LOADED, [steps]),
        "step": api.Kind(step, [steps + 1]),
        "later": api.Kind({"changed": api.many(api.held(_CHANGE))}, [steps + 1]),
    }


def run(ctx: api.Context, trainer: Any, steps: int, optimizer_states: bool = True) -> None:
    """Do this launch's part; ``steps`` are those before the save.

    ``trainer.engine`` saves and loads as DeepSpeed's does. ``trainer.step(number)`` takes a step
    and records it. ``trainer.copies()`` returns how far copies are apart: ``tied``,
    ``tied_masters``. ``trainer.watch`` is a ``stepped.Watch``; after the load it continues from the
    save.
    """
    with ctx.phase(ctx.launch):
        if ctx.launch == "train":
            _save(ctx, trainer, steps)
        else:
            _load(ctx, trainer, steps, optimizer_states)


def _save(ctx: api.Context, trainer: Any, steps: int) -> None:
    from harness.detectors.state import dump_state

    for number in range(1, steps + 1):
        trainer.step(number)
    ctx.record("drift", steps, tied=trainer.copies()["tied_masters"])
    dump_state(ctx.folder / "before", trainer.engine)
    trainer.watch.save(_torchs(ctx))
    trainer.engine.save_checkpoint(str(ctx.folder / "checkpoints"), tag=TAG)
    trainer.step(steps + 1)
    dump_state(ctx.folder / "uninterrupted", trainer.engine)


def _torchs(ctx: api.Context) -> Path:
    """The file with the state of torch's own optimizer on this rank, from before the save."""
    return ctx.folder / f"torch_{ctx.rank}.pt"


def _load(ctx: api.Context, trainer: Any, steps: int, optimizer_states: bool) -> None:
    from harness.detectors.state import changes_since, read_dump, state_changes, state_of

    before = read_dump(ctx.folder / "before", ctx.rank)
    fresh = {name: tensor.cpu().clone() for name, tensor in state_of(trainer.engine).items()}
    trained = [change.name for change in state_changes(fresh, before)]
    path, _ = trainer.engine.load_checkpoint(
        str(ctx.folder / "checkpoints"), tag=TAG, load_optimizer_states=optimizer_states
    )
    if path is None:
        raise api.Inconclusive("load_checkpoint found nothing to load")
    if optimizer_states:
        trainer.watch.load(_torchs(ctx))
    changes = changes_since(ctx.folder / "before", trainer.engine)
    state = {name: tensor.cpu() for name, tensor in state_of(trainer.engine).items()}
    reset = {c.name for c in changes} - {c.name for c in state_changes(fresh, state)}
    ctx.record(
        "loaded",
        steps,
        compared=len(before),
        masters=sum(name.endswith(MASTER) for name in before),
        trained=trained,
        changed=[_facts(change) | {"reset": change.name in reset} for change in changes],
        **trainer.copies(),
    )
    trainer.step(steps + 1)
    later = changes_since(ctx.folder / "uninterrupted", trainer.engine)
    ctx.record("later", steps + 1, changed=[_facts(change) for change in later])


def _facts(change: Any) -> dict[str, Any]:
    return asdict(change) | {"place": list(change.place)}


@dataclass(frozen=True)
class Changed:
    """A tensor that the load did not restore."""

    rank: int
    name: str
    about: str
    """How it differs, in words."""
    greatest: float
    reset: bool
    """Whether it has the value that a new process initialises it with."""

    @property
    def master(self) -> bool:
        return self.name.endswith(MASTER)

    def __str__(self) -> str:
        default = ", as initialised" if self.reset else ""
        return f"rank {self.rank}: {self.name}: {self.about}{default}"


def changed(records: api.Records) -> list[Changed]:
    """What the load did not restore, by rank.

    Master copies count only if they were loaded: without optimizer states they are made from the
    rounded weights, as intended.
    """
    changes = [
        Changed(record["rank"], c["name"], c["about"], c["greatest"], c["reset"])
        for record in records.of("loaded")
        for c in record["changed"]
    ]
    return [c for c in changes if not c.master or masters_loaded(records)]


def finding(
    records: api.Records, changes: Sequence[Changed], lines: Sequence[str], *, documented: bool
) -> api.Finding:
    """The finding that the load did not restore these tensors."""
    return api.Finding(
        message="\n".join(lines),
        step=records.of("loaded")[0]["step"],
        parameters=tuple(change.name for change in changes),
        ranks=tuple(sorted({change.rank for change in changes})),
        magnitude=max((change.greatest for change in changes), default=None),
        unit="between before the save and after the load",
        documented=documented,
    )


def masters_loaded(records: api.Records) -> bool:
    """Whether the load included the optimizer states, and so the fp32 master copies."""
    return bool(getattr(records.params, "load_optimizer_states", True))


def drifted(records: api.Records) -> Mapping[str, float]:
    """How far copies of one weight were apart right before the save."""
    return next((record["tied"] for record in records.of("drift", 0)), {})


def later(records: api.Records, change: Changed) -> str:
    """What one more step does to a parameter that the load has reset."""
    after = records.one("later", change.rank)
    still = {c["name"]: c["greatest"] for c in after["changed"]} if after else {}
    if change.name in still:
        return f"one step later {change.name} is still off, by {still[change.name]:.3g}"
    return f"one step later {change.name} is back: the step copies the fp32 master over it"


@dataclass(frozen=True)
class Losses:
    """The losses (nats) on rank 0: of the last step before the save, and of the next step without
    and with the restart."""

    before: float
    uninterrupted: float
    resumed: float

    def __str__(self) -> str:
        return (
            f"the loss of the first step after the load is {self.resumed:.4f}; without the restart "
            f"it is {self.uninterrupted:.4f} (and {self.before:.4f} in the step before)"
        )


def losses(records: api.Records) -> Losses | None:
    """The losses on both sides of the restart; None if a step is missing."""
    steps: Sequence[api.Record] = records.of("step", 0)
    trained, resumed = ([s["loss"] for s in steps if s["launch"] == launch] for launch in LAUNCHES)
    return Losses(trained[-2], trained[-1], resumed[0]) if len(trained) > 1 and resumed else None


def trained(
    records: api.Records, accepts: Callable[[str], bool], ranks: Sequence[int]
) -> api.Exercise:
    """On each of the ranks, training had moved a weight whose name ``accepts`` accepts before the
    save, so a load that restores initial values loses something."""
    moved_weights = []
    for rank in ranks:
        loaded = records.one("loaded", rank)
        accepted_names = [n for n in loaded["trained"] if accepts(n)] if loaded else []
        weights = [name for name in accepted_names if not name.endswith(MASTER)]
        if not weights:
            return api.Exercise(False, f"rank {rank} had saved only initial values of it")
        moved_weights += weights
    compared, masters = (
        sum(record[key] for record in records.of("loaded")) for key in ("compared", "masters")
    )
    return api.Exercise(
        True,
        f"training had moved {', '.join(dict.fromkeys(moved_weights))} before the save; "
        f"{compared} tensors on {len(records.ranks)} ranks were compared after the load, {masters} "
        "of them fp32 master copies",
    )


def loss_jumps(records: api.Records, by: float = 0.0) -> dict[str, bool]:
    """What everybody checks after a restart."""
    restart_losses = losses(records)
    higher = f"{by:g} nats higher" if by else "higher"
    fired = (
        restart_losses is not None and restart_losses.resumed > restart_losses.uninterrupted + by
    )
    return {f"the loss after the load is {higher} than without the restart": fired}


def copies_differ(records: api.Records, *fields: str) -> dict[str, bool]:
    """Copies of one weight are equal after a load even if it restored the wrong one."""
    differ = any(record[field] for record in records.of("loaded") for field in fields)
    return {"the tied copies differ after the load": differ}


def later_differs(records: api.Records) -> dict[str, bool]:
    """One step too late: that step copies the fp32 masters over what the load had lost."""
    if not masters_loaded(records):
        return {}
    differs = any(record["changed"] for record in records.of("later"))
    return {"a parameter differs one step after the load": differs}


def brought_back(trials: api.Trials) -> Iterator[api.Picture]:
    """A picture of each tensor that some variant did not restore, and of how much its values differ
    after the load."""
    lost = {
        variant: {
            f"rank {change.rank}: {change.name}": change.greatest for change in changed(records)
        }
        for variant, records in trials.items()
    }
    names = dict.fromkeys(name for distances in lost.values() for name in distances)
    values = [
        (variant, name, distances.get(name, 0.0))
        for variant, distances in lost.items()
        for name in names
    ]
    yield api.Bars(
        "How far each tensor is after the load from what was saved",
        "with the bug, the last stage has other values after the load; without it none differ",
        values,
        "greatest difference",
    )
