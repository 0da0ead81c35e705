"""Is the state after a load the state before the save, on every rank?

Two launches, each in fresh processes. *train*: steps, a dump of the whole state on every rank, a
checkpoint, one step more. *resume*: the load, a comparison with the dump, the same step more. fp32
master copies are compared where the optimizer keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness.errors import Inconclusive
from harness.facts.plan import Kind, Plan, each
from harness.facts.shapes import (
    COUNT,
    FLAG,
    LINE,
    NUMBER,
    SIZE,
    Facts,
    alike,
    exactly,
    held,
    many,
    matching,
)
from harness.pictures import Bars, Picture
from harness.spec import Context, Exercise, Finding, Position, Record, Records, Trials
from scenarios.common import copies, stepped

LAUNCHES = ("train", "resume")
TAG = "saved"
MASTER = " (fp32)"
"""What the names of fp32 master copies end with."""

JUMP = 0.05
"""By how much (nats) a loss must be above that without a restart to be seen in a log."""


_CHANGE = {
    "name": LINE,
    "about": matching(r"\d+ of \d+ values differ, by up to [ -~]*", "change"),
    "greatest": SIZE,
    "place": many(COUNT),
    "before": NUMBER,
    "after": NUMBER,
}
LOADED = {
    "compared": COUNT,
    "masters": COUNT,
    "trained": many(LINE, least=1),
    "changed": many(held({**_CHANGE, "reset": FLAG})),
    "tied": alike(copies.DRIFT),
    "tied_masters": alike(copies.DRIFTS),
}


def plan(at: Position, steps: int, step: Facts, optimizer_states: bool = True) -> Plan:
    """What ``run`` records in a launch, where a trainer's step has these facts, those of
    ``stepped`` and how far copies ``drift`` among them."""
    if at.launch == "train":
        return {
            "step": Kind(step, each(steps + 1)),
            "drift": Kind({"tied": alike(copies.DRIFTS)}, [steps]),
        }
    return {
        "loaded": Kind({**LOADED, "optimizer_states": exactly(optimizer_states)}, [steps]),
        "step": Kind(step, [steps + 1]),
        "later": Kind({"changed": many(held(_CHANGE))}, [steps + 1]),
    }


def run(ctx: Context, trainer: Any, steps: int, optimizer_states: bool = True) -> None:
    """Do the launch that this is; ``steps`` are those before the save.

    ``trainer.engine`` saves and loads as DeepSpeed's does, ``trainer.step(number)`` takes a step
    and records it, ``trainer.copies()`` tells how far copies are apart: ``tied``, ``tied_masters``;
    ``trainer.watch`` is a ``stepped.Watch``, which goes on after the load as it was at the save.
    """
    with ctx.phase(ctx.launch):
        if ctx.launch == "train":
            _save(ctx, trainer, steps)
        else:
            _load(ctx, trainer, steps, optimizer_states)


def _save(ctx: Context, trainer: Any, steps: int) -> None:
    from harness.detectors.state import dump_state

    for number in range(1, steps + 1):
        trainer.step(number)
    ctx.record("drift", steps, tied=trainer.copies()["tied_masters"])
    dump_state(ctx.folder / "before", trainer.engine)
    trainer.watch.save(_torchs(ctx))
    trainer.engine.save_checkpoint(str(ctx.folder / "checkpoints"), tag=TAG)
    trainer.step(steps + 1)
    dump_state(ctx.folder / "uninterrupted", trainer.engine)


def _torchs(ctx: Context) -> Path:
    """Where a rank keeps what torch's own optimizer remembers of the steps before the save."""
    return ctx.folder / f"torch_{ctx.rank}.pt"


def _load(ctx: Context, trainer: Any, steps: int, optimizer_states: bool) -> None:
    from harness.detectors.state import changes_since, read_dump, state_changes, state_of

    before = read_dump(ctx.folder / "before", ctx.rank)
    fresh = {name: tensor.cpu().clone() for name, tensor in state_of(trainer.engine).items()}
    trained = [change.name for change in state_changes(fresh, before)]
    path, _ = trainer.engine.load_checkpoint(
        str(ctx.folder / "checkpoints"), tag=TAG, load_optimizer_states=optimizer_states
    )
    if path is None:
        raise Inconclusive("load_checkpoint found nothing to load")
    if optimizer_states:
        trainer.watch.load(_torchs(ctx))
    changes = changes_since(ctx.folder / "before", trainer.engine)
    now = {name: tensor.cpu() for name, tensor in state_of(trainer.engine).items()}
    reset = {c.name for c in changes} - {c.name for c in state_changes(fresh, now)}
    ctx.record(
        "loaded",
        steps,
        compared=len(before),
        masters=sum(name.endswith(MASTER) for name in before),
        trained=trained,
        changed=[_facts(change) | {"reset": change.name in reset} for change in changes],
        optimizer_states=optimizer_states,
        **trainer.copies(),
    )
    trainer.step(steps + 1)
    later = changes_since(ctx.folder / "uninterrupted", trainer.engine)
    ctx.record("later", steps + 1, changed=[_facts(change) for change in later])


def _facts(change: Any) -> dict[str, Any]:
    return asdict(change) | {"place": list(change.place)}


@dataclass(frozen=True)
class Changed:
    """A tensor that the load did not bring back."""

    rank: int
    name: str
    about: str
    """What is different, in words."""
    greatest: float
    reset: bool
    """Whether it is what a fresh process initialises it with."""

    @property
    def master(self) -> bool:
        return self.name.endswith(MASTER)

    def __str__(self) -> str:
        default = ", as initialised" if self.reset else ""
        return f"rank {self.rank}: {self.name}: {self.about}{default}"


def changed(records: Records) -> list[Changed]:
    """What the load did not bring back, by rank.

    Master copies count where they were loaded: without optimizer states they are made of the
    rounded weights, and that is meant.
    """
    found = [
        Changed(one["rank"], c["name"], c["about"], c["greatest"], c["reset"])
        for one in records.of("loaded")
        for c in one["changed"]
    ]
    return [c for c in found if not c.master or masters_loaded(records)]


def retold(records: Records) -> list[stepped.Astray]:
    """What is told of the save and the load, and not alike: of tensors that are no parameters, of
    more or fewer than there are, of copies that drifted otherwise."""
    return [
        stepped.Astray(one["rank"], one["step"], name, about)
        for one in (*records.of("drift"), *records.of("loaded"), *records.of("later"))
        for name, about in _retold(one, records.of("step", one["rank"]))
    ]


def _retold(one: Record, steps: Sequence[Record]) -> Iterator[tuple[str, str]]:
    names, changes = {name for step in steps[:1] for name in step["got"]}, one.get("changed", ())
    for name in (*one.get("trained", ()), *(change["name"] for change in changes)):
        if name.removesuffix(MASTER) not in names:
            yield name, "is no parameter of this rank"
    for c in changes:
        values = f"{c['place']} {c['before']:.5g} before, {c['after']:.5g} after"
        if not c["about"].endswith(f", by up to {c['greatest']:.3g}: at {values}"):
            yield c["name"], f"is told to have changed by {c['greatest']:.3g} at {values}"
    if one["kind"] == "loaded":
        masters = sum(name.endswith(MASTER) for name in one["trained"])
        if one["compared"] - one["masters"] != len(names) or one["masters"] < masters:
            told = f"compared is {one['compared']}, and masters {one['masters']}"
            yield "the state", f"has {len(names)} parameters, where {told}"
    if one["kind"] == "drift":
        weights = {n: value for n, value in one["tied"].items() if not n.endswith(MASTER)}
        if [weights] != [step["drift"] for step in steps if _same_moment(step, one)]:
            yield "the tied weight", f"drifted by {weights} before the save, and not in its step"


def _same_moment(step: Record, one: Record) -> bool:
    return (step["launch"], step["step"]) == (one["launch"], one["step"])


def finding(
    records: Records, shown: Sequence[Changed], lines: Sequence[str], *, documented: bool
) -> Finding:
    """The finding of these tensors, of which the load should have brought back all."""
    return Finding(
        message="\n".join(lines),
        step=records.of("loaded")[0]["step"],
        parameters=tuple(one.name for one in shown),
        ranks=tuple(sorted({one.rank for one in shown})),
        magnitude=max((one.greatest for one in shown), default=None),
        unit="between before the save and after the load",
        documented=documented,
    )


def masters_loaded(records: Records) -> bool:
    return all(one["optimizer_states"] for one in records.of("loaded"))


def drifted(records: Records) -> Mapping[str, float]:
    """How far copies of one weight were apart right before the save."""
    return next((one["tied"] for one in records.of("drift", 0)), {})


def later(records: Records, one: Changed) -> str:
    """What one step more does to a parameter that the load has reset."""
    after = records.one("later", one.rank)
    still = {c["name"]: c["greatest"] for c in after["changed"]} if after else {}
    if one.name in still:
        return f"one step later {one.name} is still off, by {still[one.name]:.3g}"
    return f"one step later {one.name} is back: the step copies the fp32 master over it"


@dataclass(frozen=True)
class Losses:
    """In nats, at rank 0: of the last step before the save, and of the one after it both ways."""

    before: float
    uninterrupted: float
    resumed: float

    def __str__(self) -> str:
        return (
            f"the loss of the first step after the load is {self.resumed:.4f}, where it would have "
            f"been {self.uninterrupted:.4f} without the restart ({self.before:.4f} in the step "
            "before)"
        )


def losses(records: Records) -> Losses | None:
    """The losses on both sides of the restart; None where a step is missing."""
    steps: Sequence[Record] = records.of("step", 0)
    trained, resumed = ([s["loss"] for s in steps if s["launch"] == launch] for launch in LAUNCHES)
    return Losses(trained[-2], trained[-1], resumed[0]) if len(trained) > 1 and resumed else None


def trained(records: Records, which: Callable[[str], bool], ranks: Sequence[int]) -> Exercise:
    """Training had moved a weight of those that ``which`` names, on each of the ranks, before the
    save: a load that brings back initial values would lose something."""
    moved = []
    for rank in ranks:
        loaded = records.one("loaded", rank)
        found = [n for n in loaded["trained"] if which(n)] if loaded else []
        weights = [name for name in found if not name.endswith(MASTER)]
        if not weights:
            return Exercise(False, f"rank {rank} had saved only initial values of it")
        moved += weights
    compared, masters = (
        sum(one[key] for one in records.of("loaded")) for key in ("compared", "masters")
    )
    return Exercise(
        True,
        f"training had moved {', '.join(dict.fromkeys(moved))} before the save; {compared} tensors "
        f"on {len(records.ranks)} ranks were compared after the load, {masters} of them fp32 "
        "master copies",
    )


def loss_jumps(records: Records, by: float = 0.0) -> dict[str, bool]:
    """What everybody looks at after a restart."""
    found = losses(records)
    higher = f"{by:g} nats higher" if by else "higher"
    fired = found is not None and found.resumed > found.uninterrupted + by
    return {f"the loss after the load is {higher} than without the restart": fired}


def copies_differ(records: Records, *fields: str) -> dict[str, bool]:
    """Copies of one weight are equal after a load also where it brought back the wrong one."""
    differ = any(one[field] for one in records.of("loaded") for field in fields)
    return {"the tied copies differ after the load": differ}


def later_differs(records: Records) -> dict[str, bool]:
    """One step too late: it copies the fp32 masters over what the load had lost."""
    if not masters_loaded(records):
        return {}
    differs = any(one["changed"] for one in records.of("later"))
    return {"a parameter differs one step after the load": differs}


def brought_back(trials: Trials) -> Iterator[Picture]:
    """A picture of what a load did not bring back: each tensor that some variant lost, on its rank,
    and by how much its values differ after the load."""
    lost = {
        variant: {f"rank {one.rank}: {one.name}": one.greatest for one in changed(records)}
        for variant, records in trials.items()
    }
    names = dict.fromkeys(name for found in lost.values() for name in found)
    values = [
        (variant, name, found.get(name, 0.0)) for variant, found in lost.items() for name in names
    ]
    yield Bars(
        "How far each tensor is after the load from what was saved",
        "with the bug the last stage has other values after the load; without it all are the same",
        values,
        "greatest difference",
    )
