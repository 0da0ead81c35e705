"""A training: one optimizer of this rank, and what is looked at in its checked steps.

In a step that is not checked, only counters move. In a checked one the first backward arms: hooks
on the parameters sample the gradients that this rank computes. Before the first of clipping,
unscaling and the optimizer's step, those that the optimizer will use are sampled at the same
positions. All samples stay on the device; ``post`` copies them once, and does not wait.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .budget import FIRST_CHECKS, Cost
from .leftovers import Leftovers
from .module_outputs import ModuleOutputs
from .parameters import Modules, Watched, watched
from .posts import LAST, Described, LocalAlarm, Pass, Post, Update
from .resumes import Resume
from .rotation import chosen, turns
from .samples import (
    SIZE,
    Positions,
    appended,
    bit_sum,
    joined,
    largest,
    local,
    norms,
    on_device,
    partial_ranks,
    version,
)
from .skips import Skips
from .training_states import States

UPDATED = 48
"""Parameters whose update is compared in a check; the next check has others."""

MOMENTS = {"SGD": ("momentum_buffer",), "Adam": ("exp_avg", "exp_avg_sq")}
MOMENTS["AdamW"] = MOMENTS["Adam"]

MIX = 6364136223846793005
"""An odd number: two sums of bits with it in one are equal on two ranks if both sums are."""

NO_GRADIENT = (0, 0)
"""What stands for a gradient that is not there."""

LOOKED_AT = 8
"""Weights whose versions say whether a loop moves weights within a step."""

RECENT = 50
"""Steps, and checks, whose durations are kept."""
MOST_EXTRA = 3.0
"""How many times the time in its handlers a check may count for what it adds to a step's duration,
such as work of the device: the duration of a step also varies by itself."""

MOST_WAITS = 16
"""Steps of other optimizers for which a check waits: one that nobody steps would stay armed."""
MOST_NAPS = 3
"""Checks given up so, after which an optimizer is not checked again."""

Guarded = Callable[[Callable[[Any], None]], Callable[[Any], None]]


class Training:
    """One optimizer, and its steps."""

    def __init__(self, optimizer: Any, number: int, backwards: int = 0) -> None:
        """``backwards`` ran in this process before, for other trainings."""
        self.optimizer: Callable[[], Any] = weakref.ref(optimizer, self._forget)
        self.number = number
        self.steps = 0
        self.check = 0
        """The number of checks that have begun."""
        self.next_step: int | None = 1
        """The next checked step; None until rank 0 has chosen it."""
        self.armed = False
        self._handles: list[Any] = []
        self._waits = self._naps = 0
        self.is_inner = False
        """Whether another optimizer steps this one: it ends before ranks have all new weights."""
        self.is_shared = False
        """Whether another optimizer has the same parameters."""
        self.is_in_modules = True
        """Whether modules have parameters of the optimizer: others are copies of them."""
        self.is_complete = True
        """Whether this rank has all that is trained: the others have copies of it."""
        self.searches = False
        """Whether a loss was not finite: the next checked step looks for the module where it
        begins. The other thread says so."""
        self._outputs: ModuleOutputs | None = None
        self.inner_steps: int | None = None
        """The steps that a wrapper made the optimizer take in the step that runs now: one for each
        group, none if it skips it; None outside of a wrapper's step."""
        self._is_wrapped = False
        """Whether a wrapper makes its steps: then it may hold copies of the weights."""
        self.alarms: list[LocalAlarm] = []
        self.skips = Skips()
        self.setup = 0.0
        """Seconds that it took to find modules and parameters."""
        self._watched: list[Watched] = []
        self._positions: dict[int, Positions] = {}
        self._starts: dict[int, int] = {}
        """By the number of a parameter, where its sample is in ``_computed``."""
        self._size = 0
        self._modules: Modules | None = None
        self._ids: frozenset[int] = frozenset()
        self._trained: tuple[tuple[int, bool], ...] = ()
        """The ids of the parameters, and whether they train."""
        self._described = False
        """Whether rank 0 knows the parameters."""
        self._first_bits: Tensor | None = None
        self._last_bits: Tensor | None = None
        """Those after the last checked step."""
        self._notes: list[tuple[int, dict[int, int]]] = []
        """Of two steps, how often each parameter was written, by its id."""
        self._numbers: list[int] = []
        """The parameters that this check looks at."""
        self._copied: list[int] = []
        """Those of them that are copies of what the optimizer steps."""
        self._begin_bits: dict[int, Tensor] = {}
        """Their bit sums before the step."""
        self._unrounded: Tensor | None = None
        self._outside: Tensor | None = None
        """Whether weights changed between that step and this one."""
        self._leftovers = Leftovers()
        self.resume: Resume | None = None
        """The load after which the next step is one of the first; None without one."""
        self.states = States()
        """What was trained at saves and loads."""
        self._spent = self._spent_before = 0.0
        self._check_costs: deque[float] = deque(maxlen=RECENT)
        """Seconds that each of the last checks took."""
        self._has_posted = False
        """Whether the handler that runs now ends a check."""
        self._began = 0.0
        self._last = 0.0
        self._plain: deque[float] = deque(maxlen=RECENT)
        """Durations of the last steps that were not checked, in seconds."""
        self._was_alone = False
        """Whether nothing reduced the gradients of the last checked step."""
        self.micro_batches = 0
        """The backwards of the first step."""
        self._is_whole = False
        """Whether the last step had as many, and several."""
        self.foreign = 0
        """Tensors of the optimizer that belong to no module, and had no gradient in the last
        check."""
        self._short_steps, self._backwards = 0, backwards
        self._first_batches = self._step_batches = self.step_backwards = 0
        """The batches that were read for the first step, and for the last one."""
        self._reset()

    def _forget(self, _: Any) -> None:
        """Let go of the model, when nobody has its optimizer any more."""
        self.disarm()
        self._watched, self._modules = [], None

    @property
    def due(self) -> bool:
        """Whether the step that is being computed is to be checked."""
        return self.steps + 1 == self.next_step and self.optimizer() is not None

    def _reset(self) -> None:
        """Forget what was sampled of this step."""
        self._computed: Tensor | None = None
        self._types: dict[int, str] = {}
        self._unusable: set[int] = set()
        self._partial: dict[int, int] = {}
        self._partial_used: dict[int, int] = {}
        self._used: Tensor | None = None
        self._gradient_sizes: Tensor | None = None
        self._clips = 0
        """How often gradients were clipped."""
        self._norms: Tensor | None = None
        self._clipped: Tensor | None = None
        self._limits: list[Tensor] = []
        """By which norm gradients were clipped last, and to which one."""
        self._is_scaled = True
        """Whether no loss scaler has divided the gradients yet."""
        self._scaled: Tensor | None = None
        self._taken: set[int] = set()
        """The parameters whose gradients, as the optimizer uses them, were looked at."""
        self._places: list[tuple[int, int, int]] = []
        self._left: dict[int, Tensor] = {}
        """Samples of the gradients that were there when the step began, by the number of a
        parameter."""
        self._is_stale = False
        """Whether the step before left some of them, and nobody has written them since."""
        self._used_left: Tensor | None = None
        """These samples, where ``_used`` has those of the same parameters."""
        self._updates: list[Update] = []
        self._sizes_before: Tensor | None = None
        self._before: Tensor | None = None
        self._fused_scale = False
        self._without: list[str] = []
        self._dropped = 0
        self._drops_parts = self._is_part = False
        """Whether a wrapper had been told to reduce the cleared gradients, or those of the last
        backward, later: in a step of which they are a part."""
        self._dropped_sum: Tensor | None = None
        """The gradients that were cleared before a step used them."""
        self._places_of_backwards: list[Hashable] = []
        self._dropped_places: set[Hashable] = set()
        self._marks: dict[int, tuple[int, int]] = {}
        self._reduces = False
        """Whether DDP reduces the gradients of a backward."""
        self._is_edited = self._has_moved = False
        """Whether the loop changed gradients after the last backward, and weights before it."""

    # -- arming --

    def arm(
        self, parameter_ids: set[int], modules: Callable[[], Modules], guarded: Guarded
    ) -> None:
        """Begin to look at this step: its first backward begins. ``parameter_ids`` are those of
        the parameters of all optimizers, ``modules`` finds those of this process, and ``guarded``
        makes a hook that never raises."""
        started = time.perf_counter()
        optimizer = self.optimizer()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        trained = tuple((id(p), p.requires_grad) for p in parameters)
        # A loop unfreezes some, or a package has replaced them.
        if trained != self._trained or self._modules is None:
            self._modules = modules()
            self._watched = watched(optimizer, self._modules, parameter_ids)
            self._trained, self._ids = trained, frozenset(map(id, parameters))
            self._described, self._first_bits, self._last_bits = False, None, None
            self._notes, self._leftovers = [], Leftovers()
            self.is_complete = _is_complete([one.described for one in self._watched])
            self.is_in_modules = not self._modules.names.keys().isdisjoint(self._ids)
            self.setup += time.perf_counter() - started
        everything = range(len(self._watched))
        if self._first_bits is None:
            started = time.perf_counter()
            self._first_bits = self._bits(everything)
            self.setup += time.perf_counter() - started
        self._spent_before = self._spent
        self.check += 1
        self.armed, self._waits = True, 0
        self._reset()
        self._versions = self._versions_of_weights()
        if len(self._notes) < 2:
            versions = {id(one.parameter): version(one.parameter) for one in self._watched}
            self._notes.append((self.steps, versions))
        self._outside = None
        if self._last_bits is not None and self.check <= FIRST_CHECKS and self._was_alone:
            bits = self._bits(self._numbers)
            self._outside = (self._last_bits != bits).any().long().reshape(1)
        self._numbers = chosen([entry.described.name for entry in self._watched], self.check)
        self._copied = [number for number in self._numbers if self._watched[number].share.master]
        self._begin_bits = dict(zip(self._copied, self._sums(self._copied)))
        self._unrounded = self._differences()
        self._positions, self._starts, self._size = {}, {}, 0
        for number in self._numbers:
            entry = self._watched[number]
            positions = Positions.of(entry.described.numel, self.check)
            self._positions[number], self._starts[number] = positions, self._size
            self._size += positions.count
            left = self._leftovers.sample(entry, positions)
            if left is not None:
                self._left[number] = left
                self._is_stale = self._is_stale or self._leftovers.is_noted(number, entry)
            if entry.hooked is not None and positions.count:
                hook = guarded(functools.partial(self.sample_computed, number))
                self._handles.append(entry.hooked.register_hook(hook))

    @property
    def may_be_alone(self) -> bool:
        """Whether nothing reduces the gradients of this step, as far as wrappers say."""
        has_engine = self._modules is not None and self._modules.has_engine
        return self.armed and not has_engine and (self._has_no_wrapper or not self._reduces)

    @property
    def _has_no_wrapper(self) -> bool:
        """Whether nothing says which ranks have copies of some weights."""
        return any(not one.described.ranks for one in self._watched)

    def disarm(self) -> None:
        """Remove all hooks."""
        if self.armed:
            self.armed = False
            for handle in self._handles:
                handle.remove()
            self._handles = []
            if self._outputs is not None:
                self._outputs.end()

    def wait(self) -> None:
        """Note that another optimizer stepped during the check, and give it up at last."""
        self._waits += 1
        if self._waits == MOST_WAITS:
            self.disarm()
            self._naps += 1
            self.next_step = None

    def leave_out_if_outer(self) -> None:
        """Check it no more if another optimizer stepped the same parameters during its check: what
        it uses is no gradient."""
        if self.is_shared and self._waits:
            self.disarm()
            self._naps, self.next_step = MOST_NAPS, None

    @property
    def is_left_out(self) -> bool:
        """Whether it steps so seldom that it is not checked."""
        return self._naps == MOST_NAPS

    def shares(self, optimizer: Any) -> bool:
        """Whether another optimizer has a parameter of this one."""
        parameter = next((p for g in self.optimizer().param_groups for p in g["params"]), None)
        return any(p is parameter for group in optimizer.param_groups for p in group["params"])

    def has_left(self, parameters: Sequence[Any]) -> bool:
        """Whether parameters are as the last step has left them: nothing else has written them, as
        each step writes them equally often."""
        if len(self._notes) < 2 or not parameters:
            return False
        (first, before), (second, after) = self._notes
        for parameter in parameters:
            key = id(parameter)
            if key not in before or key not in after or first == second:
                return False
            writes, steps = after[key] - before[key], second - first
            if (version(parameter) - after[key]) * steps != writes * (self.steps - second):
                return False
        return True

    def holds(self, parameters: set[int]) -> bool:
        """Whether the optimizer has one of these parameters."""
        return not parameters.isdisjoint(self._ids)

    # -- gradients --

    def sample_computed(self, number: int, gradient: Any) -> None:
        """Sample a gradient that this rank computed, before any reduction."""
        if self._used is not None:
            return  # a closure is called again, or a loop clips in each micro-batch
        if gradient.layout is not torch.strided:
            self._unusable.add(number)
            return
        entry, positions = self._watched[number], self._positions[number]
        parts = partial_ranks(gradient) * entry.described.stages
        if parts > 1:
            self._partial[number] = parts
        gradient = entry.share.computed(local(gradient))
        if self._computed is None:
            self._computed = torch.zeros(self._size, dtype=torch.float32, device=gradient.device)
        if gradient.numel() != entry.described.numel:
            self._unusable.add(number)
            return
        if gradient.device != self._computed.device:
            self._unusable.add(number)
            return
        start = self._starts[number]
        slot = self._computed[start : start + positions.count]
        slot.add_(positions.values(gradient))  # another micro-batch adds to it
        self._types[number] = str(gradient.dtype)[len("torch.") :]

    def begin_backward(self, place: Hashable) -> bool:
        """Note that a backward begins at a place of the loop's code. Returns whether the loop
        itself has cleared the gradients of those before it."""
        self._reduces = self._reduces or self._modules is None or self._modules.reduces()
        number = next(iter(sorted(self._types)), None)
        has_cleared = number is not None and self._has_lost_gradient(number)
        if has_cleared:
            self.cleared(True, 0)
        self._places_of_backwards.append(place)
        self._is_part = self._modules is not None and self._modules.reduces_later()
        return has_cleared

    def _has_lost_gradient(self, number: int) -> bool:
        """Whether a parameter had a gradient after the last backward, and has none now. What steps
        a copy of the parameter takes its gradients itself."""
        entry = self._watched[number]
        is_usual = entry.hooked is entry.parameter and not (entry.share.used or entry.share.master)
        was_there = self._marks.get(number, NO_GRADIENT) != NO_GRADIENT
        return is_usual and was_there and entry.parameter.grad is None and self._used is None

    def end_backward(self) -> None:
        """Note which gradients there are after a backward, and how often they were written."""
        self._marks = {number: self._mark(number) for number in self._types}

    def _mark(self, number: int) -> tuple[int, int]:
        entry = self._watched[number]
        gradient = None if entry.share.used else local(entry.parameter.grad)
        return NO_GRADIENT if gradient is None else (id(gradient), version(gradient))

    def cleared(self, is_only_one: bool, backwards: int) -> bool:
        """Note that gradients are cleared before a step used them: another optimizer's turn, a loop
        that skips a step or computes gradients for another end, or a fault. ``backwards`` ran in
        this process before. Returns whether there were gradients."""
        if not self.armed or not self._types or self._used is not None:
            return False
        is_step = 0 < self.micro_batches <= backwards - self._backwards
        if is_step:  # the loop skips it
            self._backwards = backwards
        if is_only_one and not is_step:
            self._dropped += 1
            self._drops_parts = self._drops_parts or self._is_part
            if self._computed is not None:
                before = self._dropped_sum
                self._dropped_sum = self._computed if before is None else before + self._computed
            self._dropped_places.update(self._places_of_backwards)
            self._forget_gradients()
        else:
            self._restart()
        return True

    def drops(self, batches: int, backwards: int) -> bool:
        """Whether gradients that were cleared in this step are missing in it, by the batches that
        were read for it, and the backwards of it. If weights moved in between, as with SAM, or
        other code had computed them from the same rows, they were for another end."""
        is_elsewhere = batches < backwards and self._dropped_places.isdisjoint(
            self._places_of_backwards
        )
        has_engine = self._modules is not None and self._modules.has_engine
        is_assembled = self._is_edited and not self._has_no_wrapper  # of several, by the loop
        is_assembled = is_assembled and not has_engine
        return bool(self._dropped) and not (is_elsewhere or self._has_moved or is_assembled)

    def has_separate_losses(self, batches: int) -> bool:
        """Whether the backwards of this step are those of several losses of the same rows, by their
        places in the code: they are no micro-batches."""
        places = self._places_of_backwards
        return batches < len(places) == len(set(places)) > 1

    def _versions_of_weights(self) -> list[int]:
        return [version(local(one.parameter)) for one in self._watched[:LOOKED_AT]]

    def _forget_gradients(self) -> None:
        self._computed = None
        self._types, self._unusable, self._partial = {}, set(), {}
        self._places_of_backwards, self._marks = [], {}

    def skipped(self, backwards: int) -> None:
        """Note that a loss scaler skipped the step, so its gradients are used by none."""
        self._backwards = backwards
        if self.armed:
            self._restart()

    def _restart(self) -> None:
        dropped = self._dropped, self._drops_parts, self._dropped_sum, self._dropped_places
        reduces = self._reduces
        self._reset()
        self._dropped, self._drops_parts, self._dropped_sum, self._dropped_places = dropped
        self._reduces = reduces

    @property
    def is_sampled(self) -> bool:
        """Whether the gradients that the optimizer uses in this step were sampled."""
        return self.armed and self._used is not None

    def take_used(self) -> None:
        """Sample the gradients after the reduction and before they are clipped or scaled.

        A wrapper steps groups of parameters one after the other, each with gradients that it has
        just made: then each call samples those of another group.
        """
        if not self.armed or (self._used is not None and self.inner_steps is None):
            return
        views, optimizer = [], self.optimizer()
        gradients: dict[int, Tensor] = {}
        if self.inner_steps is None:  # a wrapper reduces them into tensors of its own
            self._has_moved = self._versions != self._versions_of_weights()
            self._is_edited = any(self._mark(n) != mark for n, mark in self._marks.items())
        for number in sorted(self._types.keys() - self._taken):
            entry, positions = self._watched[number], self._positions[number]
            gradient = entry.gradient(optimizer)
            described = entry.described
            if gradient is None:
                if self.inner_steps is None:
                    self._note_without(number)
                continue
            self._taken.add(number)
            parts = partial_ranks(gradient)
            gradient = local(gradient)
            begin_number, end_number = positions.within(described.begin, described.end)
            size = described.end - described.begin
            if gradient.layout is not torch.strided or gradient.numel() != size:
                continue
            gradients[number] = gradient
            if end_number <= begin_number:
                continue
            views.append(positions.part(gradient, described.begin, begin_number, end_number))
            self._places.append((number, begin_number, end_number))
            if parts > 1:
                self._partial_used[number] = parts
        if self._left and self.inner_steps is None:
            empty = next(iter(self._left.values())).new_zeros(SIZE)  # on their device
            left = [self._left.get(n, empty[: end - begin]) for n, begin, end in self._places]
            self._used_left = joined(left)
        self._used = appended(self._used, views)
        if gradients:  # a wrapper's group may have none of this rank, or of this check
            sizes = largest([gradients.get(number) for number in self._numbers])
            before = self._gradient_sizes
            self._gradient_sizes = sizes if before is None else torch.maximum(before, sizes)

    def begin_clip(self, ids: set[int], norm_type: float) -> None:
        """Note how long the gradients are that are clipped now, if the clipping is that of all of
        them, and this check looks at all. ``ids`` are those of its parameters."""
        self._clips += 1
        self._norms = None
        with_gradient = {
            id(one.parameter): one.parameter.grad
            for one in self._watched
            if one.parameter.grad is not None
        }
        is_whole = len(self._numbers) == len(self._watched) and with_gradient.keys() <= ids
        if self._clips > 1 or norm_type != 2 or not is_whole or not with_gradient:
            return
        gradients = list(with_gradient.values())
        if all(type(one) is Tensor and one.layout is torch.strided for one in gradients):
            parameters = [self._watched[number].parameter for number in self._numbers]
            self._norms = norms([with_gradient.get(id(one)) for one in parameters], 2.0)

    def end_clip(self, norm: Any, limit: Any) -> None:
        """Note by which norm, and to which one, these gradients were clipped."""
        if self._norms is not None and isinstance(norm, (float, Tensor)):
            device = self._norms.device
            values = [on_device(one, device) for one in (norm, limit)]
            self._clipped = torch.cat(values)
        if type(norm) is Tensor and self._is_scaled:
            self._limits = [on_device(one, norm.device) for one in (norm, limit)]

    def unscale(self, scaler: Any) -> None:
        """Note the scale by which a loss scaler divides the gradients, if they were clipped
        before."""
        scale = getattr(scaler, "_scale", None)  # it is on the device
        if self.armed and self._is_scaled and self._limits and type(scale) is Tensor:
            scale = on_device(scale, self._limits[0].device)
            self._scaled = torch.cat([*self._limits, scale])
        self._is_scaled = False

    def _note_without(self, number: int) -> None:
        """Note that the optimizer has no gradient of a parameter."""
        entry = self._watched[number]
        has_part = entry.described.optimized and entry.described.end > entry.described.begin
        if has_part and entry.share.steps:
            self._without.append(entry.described.name)

    def begin_step(self) -> None:
        """Look at the outputs of modules in the step that begins, if it is the one to do so."""
        if self._outputs is not None:
            self._outputs.end()  # the step was skipped
        if self.searches and self._outputs is None and self.due and self._modules is not None:
            self._outputs = ModuleOutputs(self._modules)

    # -- the step --

    def begin_wrapper_step(self) -> None:
        """Note that a wrapper begins a step: it makes the optimizer take several, or none."""
        self.inner_steps, self._is_wrapped = 0, True
        self._compare_resume()

    def end_wrapper_step(self) -> int:
        """Note that a wrapper's step has ended; returns how many the optimizer took."""
        inner, self.inner_steps = self.inner_steps or 0, None
        if inner and self.armed:
            for number in sorted(self._types.keys() - self._taken):
                self._note_without(number)
            differences = self._differences()
            before, self._unrounded = self._unrounded, differences
            if before is not None and differences is not None:
                self._unrounded = before + differences
        return inner

    def _differences(self) -> Tensor | None:
        """By parameter, how many values of the weight that this rank has are not those of the
        optimizer's copy, rounded; None if it has no copy on the device of a weight."""
        counts = []
        for number in self._numbers:
            master = self._watched[number].share.master
            if master is not None and master.tensor is not None:
                rounded, exact = master.rounded(), master.of(master.tensor)
                if rounded.device == exact.device and rounded.numel() == exact.numel():
                    is_apart = exact.to(rounded.dtype) != rounded
                    counts.append((number, (is_apart & (rounded == rounded)).sum()))
        if not counts:
            return None
        sums = dict(counts)
        none = torch.zeros_like(counts[0][1])
        return torch.stack([sums.get(number, none).to(none.device) for number in self._numbers])

    def before_step(self) -> None:
        """Sample what the formula of the optimizer needs."""
        if self.inner_steps is None:
            self._compare_resume()
        if not self.armed:
            return
        self.take_used()
        optimizer, views = self.optimizer(), []
        if self._sizes_before is None:
            self._sizes_before = largest([self._watched[number].weight for number in self._numbers])
        groups: dict[int, Any] = {}
        for group in optimizer.param_groups:
            with_settings = group, _plain_settings(group)
            groups.update((id(parameter), with_settings) for parameter in group["params"])
        for number in self._chosen(groups):
            update, tensors = self._update(optimizer, number, groups)
            self._updates.append(update)
            views += tensors
        self._before = appended(self._before, views)
        self._fused_scale = getattr(optimizer, "grad_scale", None) is not None

    def _compare_resume(self) -> None:
        """Compare one of the first steps after a load with the loaded state."""
        if self.resume is not None:
            self.alarms += self.resume.before_step(self.optimizer())
            self.resume = None if self.resume.is_over else self.resume

    def _chosen(self, groups: Collection[int]) -> list[int]:
        """The parameters whose update this check compares, of those that it steps now."""
        ready = [
            number
            for number, one in ((n, self._watched[n]) for n in self._numbers)
            if one.described.optimized
            and one.share.steps
            and id(one.stepped) in groups
            and (gradient := one.stepped.grad) is not None
            and gradient.layout is torch.strided
            and partial_ranks(gradient) == 1
            and one.weight.numel()
        ]
        # The part of this check comes again after some checks, and begins elsewhere then.
        start = (self.check - 1) // turns(len(self._watched)) * UPDATED % max(1, len(ready))
        most = max(0, UPDATED - len(self._updates))
        return (ready + ready)[start : start + min(most, len(ready))]

    def _update(
        self, optimizer: Any, number: int, groups: dict[int, Any]
    ) -> tuple[Update, list[Tensor]]:
        entry = self._watched[number]
        stepped = entry.stepped
        group, settings = groups[id(stepped)]
        state = optimizer.state.get(stepped, {})
        positions = Positions.of(entry.weight.numel())
        names = MOMENTS.get(kind_of(optimizer), ())
        present = [name for name in names if isinstance(state.get(name), Tensor)]
        tensors = [stepped.grad, *(state[name] for name in present)]
        parts = [entry.weight, *(entry.of_stepped(tensor) for tensor in tensors)]
        views = [positions.values(part) for part in parts]
        step, rate = state.get("step", 0), group.get("lr", 0.0)
        for value in (step, rate):
            if _is_on_device(value):
                views.append(value.detach().reshape(1))
        moments = Update(
            number,
            positions.count,
            present,
            -1.0 if _is_on_device(step) else float(step),
            -1.0 if _is_on_device(rate) else float(rate),
            settings,
        )
        return moments, views

    def save(self, path: str, content: Any, begun: Sequence[Pass]) -> None:
        """Note what is trained: a checkpoint is saved. ``content`` is what this rank writes alone,
        perhaps for others, and ``begun`` are the epochs in whose middle it is."""
        if self.steps and self._watched:
            optimizer = self.optimizer()
            self.states.save(self.steps, optimizer, self._watched, path, begun)
            if content is not None and not self.is_complete:
                self.states.note_gathered(self.steps, optimizer, self._watched, path, content)

    def note_file(self, content: Any) -> None:
        """Note the weights that a file gets: a checkpoint may have several files."""
        if self.steps and self._watched and self.is_complete:
            self.states.note_weights(self.steps, self.optimizer(), self._watched, content)

    def go_on(self) -> None:
        """Note what is trained, if it was loaded since the last step."""
        if self.states.loaded is not None and self._watched:
            self.states.resume(self.optimizer(), self._watched)

    def loaded(self, schedules: Callable[[Any], list[Any]]) -> None:
        """Note that the optimizer's state was loaded; ``schedules`` finds those of its rates."""
        optimizer = self.optimizer()
        self.states.load(self.steps, optimizer)
        # A package may load an optimizer's first state into itself, to move it to a device.
        is_first = not self.steps and self.states.changes_rates(optimizer)
        if any(optimizer.state.values()) or is_first:
            self.resume = Resume(optimizer, schedules)
            self._trained = ()  # the weights may be others now

    def after_step(self, backwards: int, batches: int = 0) -> bool:
        """Count a step, before which ``backwards`` backwards ran in all, and for which so many
        batches were read; returns whether it was checked."""
        seconds = time.perf_counter()
        self.steps += 1
        self.skips.taken()
        if not self._began:
            self._began = seconds
        elif not self.armed:
            self._plain.append(seconds - self._last)
        else:
            self._spend_extra(seconds - self._last)
        self._last = seconds
        if self._waits == MOST_WAITS and not self.is_left_out:
            self.next_step, self._waits = self.steps + 1, 0
        if self.next_step == self.steps and not self.armed:
            self.next_step = self.steps + 1  # no backward was before it: a state is made by a step
        self.step_backwards, self._step_batches = backwards - self._backwards, batches
        self._count_backwards(backwards - self._backwards, batches)
        self._backwards = backwards
        self._was_alone = self.may_be_alone if self.armed else self._was_alone
        return self.armed

    def _count_backwards(self, backwards: int, batches: int) -> None:
        # A step that was skipped may be in the first one, unless its gradients were to be reduced
        # with later ones.
        has_skipped = self.armed and self._dropped and not self._drops_parts
        if not self.micro_batches and not has_skipped:
            self.micro_batches, self._first_batches = backwards, batches
        self._is_whole = backwards == self.micro_batches > 1
        # Several losses of one batch may have backwards of their own, and some of them may end.
        is_short = 0 < backwards < self.micro_batches / 2
        is_short = is_short and (not self._first_batches or batches < self._first_batches / 2)
        self._short_steps = self._short_steps + 1 if is_short else 0
        if self._short_steps == 4:
            text = (
                f"a step has {backwards} micro-batches now, and had {self.micro_batches} at first"
            )
            self.alarms.append(LocalAlarm("accumulation", "fewer", text, float(backwards)))

    # -- the post --

    def describe_again(self) -> None:
        """Describe the parameters in the next post: rank 0 has lost an earlier one."""
        self._described = False

    def post(self, rank: int) -> Post:
        """What this rank saw in the checked step that ends now."""
        optimizer = self.optimizer()
        weights = [self._watched[number].weight for number in self._numbers]
        values = [Positions.of(weight.numel()).values(weight) for weight in weights]
        is_drop = self.drops(self._step_batches, self.step_backwards)
        if is_drop and self._dropped_sum is not None and self._computed is not None:
            self._computed = self._computed + self._dropped_sum
        self._dropped = self._dropped if is_drop else 0
        tensors = {
            "bits": self._bits_of_step(),
            "weights": joined([sample for sample in values if len(sample)]),
            "updates": torch.zeros(0) if self._before is None else self._before,
            "weight_sizes": largest(weights),
        }
        if self._gradient_sizes is not None:
            tensors["gradient_sizes"] = self._gradient_sizes
        if self._sizes_before is not None:
            tensors["sizes_before"] = self._sizes_before
        if self._computed is not None:
            tensors["computed"] = self._computed
        if self._used is not None:
            tensors["used"] = self._used
        if self._used_left is not None:
            tensors["left"] = self._used_left
        if self._outside is not None:
            tensors["outside"] = self._outside
        if self._norms is not None and self._clipped is not None:
            tensors["norms"], tensors["clipped"] = self._norms, self._clipped
        if self._scaled is not None:
            tensors["scaled"] = self._scaled
        if self._unrounded is not None:
            tensors["unrounded"] = self._unrounded
        self._last_bits = None if self._copied else tensors["bits"]
        modules, alarms = self._modules, self.alarms
        post = Post(rank, self.number, self.check, self.steps, kind=kind_of(optimizer))
        if not self._described:
            post.described = [one.described for one in self._watched]
            assert self._first_bits is not None  # noqa: S101
            tensors["first_bits"] = self._first_bits
            self._described = True
        post.tensors = tensors
        if self._outputs is not None and self._outputs.is_open:
            self._outputs.end()
            post.calls, post.opaque = self._outputs.calls, self._outputs.opaque
            tensors["calls"] = self._outputs.sizes()
        post.numbers = self._numbers if len(self._numbers) < len(self._watched) else []
        post.computed = {str(n): t for n, t in self._types.items() if n not in self._unusable}
        post.unusable = sorted(self._unusable)
        post.partial = {str(n): parts for n, parts in self._partial.items()}
        post.partial_used = {str(n): parts for n, parts in self._partial_used.items()}
        post.used, post.without_gradient = self._places, self._without
        post.edited, post.stale = self._is_edited, self._is_stale
        post.hooked = has_own_hooks(optimizer)
        post.separate = self.has_separate_losses(self._step_batches)
        post.updates, post.dropped = self._updates, self._dropped
        post.is_whole = self._is_whole
        parameters_by_id = modules.parameters if modules else {}
        if not self._is_wrapped:
            self.foreign = post.foreign = sum(
                id(parameter) not in parameters_by_id and parameter.grad is None
                for group in optimizer.param_groups
                for parameter in group["params"]
            )
        post.outer, post.unreduced = self.is_shared, not self._reduces
        post.averages = modules.averages if modules else ""
        post.unheld = [
            one.described.name
            for one in self._watched
            if not one.described.optimized and one.parameter.grad is not None
        ]
        post.fused_scale = self._fused_scale
        post.alarms, self.alarms = alarms, []
        self._add_states(post)
        self._leftovers.note(self._watched)
        self.next_step = self.steps + 1 if self.check < FIRST_CHECKS else None
        self._has_posted = True
        return post

    def last_post(self, rank: int) -> Post:
        """What rank 0 does not know yet when the training is over."""
        post = Post(rank, self.number, LAST, self.steps)
        self._add_states(post)
        return post

    def _add_states(self, post: Post) -> None:
        post.states, sums = self.states.take()
        if sums is not None:
            post.tensors["states"] = sums

    def _sums(self, numbers: Sequence[int]) -> list[Tensor]:
        return [bit_sum(self._watched[number].copy) for number in numbers]

    def _bits(self, numbers: Sequence[int]) -> Tensor:
        return _stacked(self._sums(numbers))

    def _bits_of_step(self) -> Tensor:
        """The bit sums after the step. A step overwrites weights that are copies of others, and so
        heals them: their sums have those before the step in them, too."""
        sums = dict(zip(self._numbers, self._sums(self._numbers)))
        for number, before in self._begin_bits.items():
            sums[number] = sums[number] + MIX * before
        return _stacked(list(sums.values()))

    # -- the cost --

    def spend(self, seconds: float) -> None:
        """Note what a handler cost."""
        self._spent += seconds
        if self._has_posted:
            self._has_posted = False
            self._check_costs.append(self._spent - self._spent_before)

    def _spend_extra(self, duration: float) -> None:
        """Note how much longer than the usual ones a checked step was."""
        in_handlers = self._spent - self._spent_before
        usual = statistics.median(self._plain) if self._plain else duration
        extra = duration - usual - in_handlers
        self._spent += min(max(0.0, extra), MOST_EXTRA * in_handlers)

    def cost(self, thread: float) -> Cost:
        """What checks have cost so far; ``thread`` are the seconds of the other thread."""
        step = statistics.median(self._plain) if self._plain else 0.0
        spent = max(0.0, self._spent - self.setup)
        elapsed = time.perf_counter() - self._began if self._began else 0.0
        costs = self._check_costs
        check = statistics.median(costs) if costs else spent / max(1, self.check)
        return Cost(self.check, spent, thread, check, step, elapsed)


def _stacked(sums: Sequence[Tensor]) -> Tensor:
    if not sums:
        return torch.zeros(0, dtype=torch.int64)
    return torch.stack([one.to(sums[0].device) for one in sums])


def _is_complete(described: Sequence[Described]) -> bool:
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    return world == 1 or all(
        len(one.ranks) == world and one.size == one.numel == one.end - one.begin
        for one in described
        if one.optimized
    )


def kind_of(optimizer: Any) -> str:
    """The class of an optimizer: by its name alone only if it is one of torch, as the formulas are
    known by these names."""
    kind = type(optimizer)
    is_of_torch = kind is getattr(torch.optim, kind.__name__, None)
    return kind.__name__ if is_of_torch else f"{kind.__module__}.{kind.__name__}"


def has_own_hooks(optimizer: Any) -> bool:
    """Whether the loop has hooks around the optimizer's step, which may change all that it uses."""
    names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
    return any(getattr(optimizer, name, None) for name in names)


def _is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"


def _plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a group that are numbers."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in group.items()
        if name != "params" and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(isinstance(part, (int, float)) for part in value)
    return isinstance(value, (int, float, bool))


STRANGERS = tuple(
    os.path.join(folder, "")
    for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
)
"""The folders of code that calls a backward for a loop."""


def place_of_caller() -> Hashable:
    """The place in the loop's code, or in that of a package, that runs now."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(STRANGERS):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
