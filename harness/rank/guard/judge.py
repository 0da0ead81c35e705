"""What is wrong in a step, by the posts of all its ranks. Nothing here asks a device or a rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib import import_module

from . import checks
from .check_table import CHECKS
from .checks.accumulation import LOSS_NEAR, loss_count
from .checks.checkpoints import checkpoints
from .checks.replicas import copies, replicas
from .checks.views import Memory, View
from .posting.packing import ParameterTable
from .posting.posts import LAST, Alarm, Post

PATIENCE = 4
"""Checks in a row with cleared gradients that make a fault: a loop may skip a step now and then, as
the right training ``ddp skips_steps`` does each fourth step. A step of the usual number of
micro-batches, some of which are lost, counts twice: a loop that skips a step computes more of them.
The losses say that the cleared ones are missing: all together they count once, and those of SAM
twice."""


LOCAL_STEPS = 512
"""So many steps may ranks train alone, without any reduction, before local SGD has to average their
weights. What differs then is told; also at the end of the training, if that comes first. Eight
right loops average after 6 to 9 steps, so the fifth check was too early; DiLoCo does after 500."""

APART = (("gradients", "mean"), ("replicas", "differ"))
"""The alarms of ranks that train alone."""

JUDGES: dict[str, Callable[[Sequence[View], Memory], Iterator[Alarm]]] = {
    name: getattr(import_module(f"{checks.__name__}.{name.split('.')[0]}"), name.split(".")[-1])
    for check in CHECKS
    for name in check.judges
}


def judge(posts: Sequence[Post], memory: Memory) -> list[Alarm]:
    """The faults of a step, each once: the same fault on several ranks is one."""
    views = [_remembered(post, memory) for post in posts]
    if posts[0].check == LAST:
        return [] if memory.unpaired else [*checkpoints(views, memory), *_at_end(views, memory)]
    alarms = [replace(alarm, ranks=[post.rank]) for post in posts for alarm in post.alarms]
    if any(post.parameters.described for post in posts):
        memory.unpaired = memory.unpaired or _are_unlike(views)
    if memory.unpaired or any(_is_stranger(view) for view in views):
        memory.not_seen["ranks"] = (
            "the ranks are not compared: some have constructed an optimizer that others have not"
        )
        return _merged(alarms)
    if posts[0].run.facts:
        memory.trainer = bool(posts[0].run.facts["settings"].get("trainer"))
    was_dropped = [post for post in posts if post.gradients.dropped]
    weight = 2 if any(post.losses.is_whole for post in was_dropped) else 1
    count = loss_count(views) if was_dropped else None
    is_of_parts = count is not None and count.micro > 1 and abs(count.total - 1) <= LOSS_NEAR
    memory.gradients.dropped = memory.gradients.dropped + weight if is_of_parts else 0
    if was_dropped and not is_of_parts:
        memory.not_seen["dropped"] = (
            "whether it is meant that gradients are cleared before a step uses them, perhaps as "
            "they lead to other weights (SAM, MAML): then gradients are not compared"
        )
    for name, judge_of_step in JUDGES.items():
        is_of_all = name in ("gradients", "accumulation")  # also of those that were cleared
        if not (is_of_all and was_dropped and memory.gradients.dropped < PATIENCE):
            alarms += judge_of_step(views, memory)
    return _merged(_without_local_steps(alarms, views, memory))


def _is_stranger(view: View) -> bool:
    """Whether a rank looks at parameters that it has never described."""
    return not len(view.described) and bool(len(view.post.tensors.get("bits", ())))


def _are_unlike(views: Sequence[View]) -> bool:
    """Whether a wrapper shares a parameter with a rank that has none of this name: rank 0 alone
    trains a probe, too, so its optimizers have other numbers than those of the other ranks."""
    names = {v.rank: {*v.described.columns.names} for v in views if len(v.described)}
    return any(
        described.name not in names[rank]
        for view in views
        for described in view.described
        for rank in described.ranks
        if rank in names
    )


def _at_end(views: Sequence[View], memory: Memory) -> Iterator[Alarm]:
    """The faults after the last step, if all ranks have told of the same one."""
    is_one_step = len({(view.post.step, view.post.loop.joined) for view in views}) == 1
    is_complete = len(views) == len(memory.described) > 1
    if not (is_one_step and is_complete and all("bits" in view.post.tensors for view in views)):
        return
    if not memory.apart.averages and not memory.apart.unreduced:
        count = memory.compared.get("replicas", 0)
        for alarm in replicas(views, memory):
            # What writes an average, or other weights, on one rank changes all of them.
            known = [view for view in views if view.first_bits is not None]
            trained = sum(1 for _ in copies(views, [(v, n) for v in known for n in v.numbers]))
            yield from [alarm] if 2 * len(alarm.parameters) <= trained else []
        memory.compared["replicas"] = max(count, memory.compared["replicas"])


def _without_local_steps(alarms: list[Alarm], views: Sequence[View], memory: Memory) -> list[Alarm]:
    """The alarms, without those of local SGD: it reduces no gradients, and averages the weights
    each few steps. A loop that has done so in none of many steps forgets the reduction."""
    step = views[0].post.step
    if memory.apart.unreduced and not memory.apart.alone:
        memory.apart.alone_since = step
    memory.apart.alone += memory.apart.unreduced
    averages = next((view.post.loop.averages for view in views if view.post.loop.averages), "")
    if len({view.post.loop.joined for view in views}) > 1:
        averages = "the ranks have taken unlike numbers of steps in a join()"
    if memory.apart.unreduced and any(
        "outside" in view.post.tensors and int(view.post.tensors["outside"].sum()) for view in views
    ):
        averages = "the loop itself changes weights after a step, as local SGD does"
    if memory.apart.unreduced and any(view.post.loop.outer for view in views):
        averages = "another optimizer has the same parameters, as with DiLoCo"
    tables = [view.described.columns for view in views]
    has_one_model = any(any(one.groups) or any(one.fields["part"]) for one in tables)
    # Otherwise each may have a fold, or a member of an ensemble, that began with one seed.
    shares_training = has_one_model or any(view.post.data.epochs for view in views)
    if memory.apart.unreduced and not shares_training:
        averages = (
            "perhaps each rank trains a model of its own, as nothing is reduced, no wrapper says "
            "that ranks share a model, and no sampler splits rows among them"
        )
    memory.apart.averages = memory.apart.averages or averages
    apart = _merged([one for one in alarms if (one.check, one.kind) in APART])
    others = [one for one in alarms if (one.check, one.kind) not in APART]
    if memory.apart.averages:
        memory.apart.held.clear()
        memory.not_seen.pop("alone", None)
        for name in ("gradients", "replicas"):
            memory.not_seen[name] = f"{name} are not compared: {memory.apart.averages}"
        return others
    is_early = step - memory.apart.alone_since < LOCAL_STEPS
    if memory.apart.unclear or (memory.apart.unreduced and is_early):
        for alarm in apart:
            alarm.step = alarm.step or step
            memory.apart.held.setdefault((alarm.check, alarm.kind), alarm)
        if memory.apart.unreduced:
            memory.not_seen["alone"] = (
                f"ranks train alone since step {memory.apart.alone_since}, as in local SGD: "
                f"whether they ever average their weights is told {LOCAL_STEPS} steps later, or at "
                "the end"
            )
        return others
    if memory.apart.unreduced and apart:
        apart = list(
            {**{(one.check, one.kind): one for one in apart}, **memory.apart.held}.values()
        )
        memory.apart.held.clear()
        memory.not_seen.pop("alone", None)
    return others + apart


def _remembered(post: Post, memory: Memory) -> View:
    if post.parameters.described:
        memory.described[post.rank] = ParameterTable.of(post.parameters.described)
        memory.first_bits.pop(post.rank, None)
        memory.weights.at_first.pop(post.rank, None)
        memory.gradients.compared = {}
    if "first_bits" in post.tensors:
        memory.first_bits[post.rank] = post.tensors["first_bits"]
    table = memory.described.get(post.rank) or ParameterTable.of([])
    first_bits = memory.first_bits.get(post.rank)
    looks_at = len(post.parameters.numbers) or len(table)
    if looks_at != len(post.tensors.get("bits", ())) or (
        first_bits is not None and len(first_bits) != len(table)
    ):
        first_bits = None
    return View(post, table, first_bits)


def _merged(alarms: Sequence[Alarm]) -> list[Alarm]:
    merged: dict[tuple[str, str], Alarm] = {}
    ranks: dict[tuple[str, str], set[int]] = {}
    for alarm in alarms:
        key = alarm.check, alarm.kind
        merged_alarm = merged.setdefault(key, alarm)
        merged_alarm.size = max(merged_alarm.size, alarm.size)
        ranks.setdefault(key, set()).update(alarm.ranks)
    for key, alarm in merged.items():
        alarm.ranks = sorted(ranks[key])
    return list(merged.values())
