"""A training: one optimizer of this rank, and what is looked at in its checked steps.

In a step that is not checked, only counters move. In a checked one the first backward arms: hooks
on the parameters sample the gradients that this rank computes. Before the first of clipping,
unscaling and the optimizer's step, those that the optimizer will use are sampled at the same
positions. All samples stay on the device; ``post`` copies them once, and does not wait.
"""

from __future__ import annotations

import contextlib
import functools
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..training.parameters import Modules, Watched, count_foreign, is_complete, watched
from .posting.budget import FIRST_CHECKS, CheckCosts, Cost
from .posting.posts import LAST, LocalAlarm, Pass, Post
from .process import world
from .sampling.backwards import BackwardCounts, Backwards
from .sampling.clips import ClipOrder, Clips
from .sampling.gradient_samples import GradientSamples, Leftovers
from .sampling.module_outputs import ModuleOutputs, RootInputs
from .sampling.optimizers import has_own_hooks, kind_of
from .sampling.samples import Positions, chosen, joined, largest
from .sampling.skips import Skips
from .sampling.update_samples import UpdateSamples
from .sampling.weight_sums import FinalSums, WeightSums
from .states.resumes import Resume
from .states.training_states import MODEL, States
from .states.written_weights import written_weights

MOST_WAITS = 16
"""Steps of other optimizers for which a check waits: one that nobody steps would stay armed."""
MOST_NAPS = 3
"""Checks given up so, after which an optimizer is not checked again."""

Guarded = Callable[[Callable[[Any], None]], Callable[[Any], None]]


UNNUMBERED = -1
"""The number of an optimizer whose first step will number it."""


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
        self.copies: list[str] = []
        """The classes of modules that are copies of what is trained."""
        self.is_complete = True
        """Whether this rank has all that is trained: the others have copies of it."""
        self.searches = False
        """Whether a loss was not finite: the next checked step looks for the module where it
        begins. The other thread says so."""
        self._outputs: ModuleOutputs | None = None
        self._inputs: RootInputs | None = None
        self.inner_steps: int | None = None
        """The steps that a wrapper made the optimizer take in the step that runs now: one for each
        group, none if it skips it; None outside of a wrapper's step."""
        self._is_wrapped = False
        """Whether a wrapper makes its steps: then it may hold copies of the weights."""
        self.alarms: list[LocalAlarm] = []
        self.skips = Skips()
        self._clip_order = ClipOrder()
        self.costs = CheckCosts()
        self._watched: list[Watched] = []
        self._modules: Modules | None = None
        self._ids: frozenset[int] = frozenset()
        self._trained: tuple[tuple[int, bool], ...] = ()
        """The ids of the parameters, and whether they train."""
        self._described = False
        """Whether rank 0 knows the parameters."""
        self._numbers: list[int] = []
        """The parameters that this check looks at."""
        self._sums: WeightSums | None = None
        self._final = FinalSums()
        self._leftovers = Leftovers()
        self.resume: Resume | None = None
        """The load after which the next step is one of the first; None without one."""
        self.is_resumed = False
        self.states = States()
        """What was trained at saves and loads."""
        self._was_alone = False
        """Whether nothing reduced the gradients of the last checked step."""
        self.counts = BackwardCounts(backwards)
        self.joined = 0
        """The steps before the last end of a ``join()``."""
        self.foreign = 0
        """Tensors of the optimizer that belong to no module, and had no gradient in the last
        check."""
        self._samples = GradientSamples([], [], 0)
        self._reset()

    def _forget(self, _: Any) -> None:
        """Let go of the model, when nobody has its optimizer any more."""
        if GradientSamples is None:  # the interpreter ends, and has cleared this module
            return
        self.disarm()
        with contextlib.suppress(Exception):  # what it held may be gone, too
            self._note_end()
        self._watched, self._modules, self._sums = [], None, None
        self._samples = GradientSamples([], [], 0)

    @property
    def due(self) -> bool:
        """Whether the step that is being computed is to be checked."""
        return self.steps + 1 == self.next_step and self.optimizer() is not None

    def _reset(self) -> None:
        """Forget what was noted of this step."""
        self._backwards_of_step, self._clips = Backwards(), Clips()
        self._update_samples = UpdateSamples()

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
            self._described, self._sums, self._leftovers = False, None, Leftovers()
            self.is_complete = is_complete([one.described for one in self._watched])
            self.copies = self._modules.copies(self._ids)
            self.is_in_modules = not self._modules.names.keys().isdisjoint(self._ids)
            self._sums = WeightSums(self._watched)
            self.costs.setup += time.perf_counter() - started
        self.costs.begin_check()
        self.check += 1
        self.armed, self._waits = True, 0
        self._reset()
        self._numbers = chosen([entry.described.name for entry in self._watched], self.check)
        assert self._sums is not None  # noqa: S101
        looks_outside = self.check <= FIRST_CHECKS and self._was_alone
        self._sums.begin_check(self._numbers, self.steps, looks_outside)
        samples = GradientSamples(self._watched, self._numbers, self.check)
        self._samples = samples
        samples.note_left(self._leftovers)
        for number in self._numbers:
            hooked = self._watched[number].hooked
            if hooked is not None and samples.positions[number].count:
                hook = guarded(functools.partial(samples.add_computed, number))
                self._handles.append(hooked.register_hook(hook))

    @property
    def may_be_alone(self) -> bool:
        """Whether nothing reduces the gradients of this step, as far as wrappers say."""
        has_engine = self._modules is not None and self._modules.has_engine
        is_unreduced = self._has_no_wrapper or not self._backwards_of_step.reduces
        return self.armed and not has_engine and is_unreduced

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
        """Whether parameters are as the last step has left them: nothing else has written them."""
        return self._sums is not None and self._sums.has_left(parameters, self.steps)

    def holds(self, parameters: set[int]) -> bool:
        """Whether the optimizer has one of these parameters."""
        return not parameters.isdisjoint(self._ids)

    # -- gradients --

    def begin_backward(self, place: Hashable) -> bool:
        """Note that a backward begins at a place of the loop's code. Returns whether the loop
        itself has cleared the gradients of those before it."""
        has_cleared = self._samples.have_lost_one()
        if has_cleared:
            self.cleared(True, 0)
        self._backwards_of_step.begin(place, self._modules)
        return has_cleared

    def end_backward(self) -> None:
        """Note which gradients there are after a backward, and how often they were written."""
        self._samples.end_backward()

    def cleared(self, is_only_one: bool, backwards: int) -> bool:
        """Note that gradients are cleared before a step used them: another optimizer's turn, a loop
        that skips a step or computes gradients for another end, or a fault. ``backwards`` ran in
        this process before. Returns whether there were gradients."""
        if not self.armed or not self._samples.types or self._samples.used is not None:
            return False
        is_step = self.counts.are_of_a_step(backwards)
        if is_step:  # the loop skips it
            self.counts.skip(backwards)
        if is_only_one and not is_step:
            self._backwards_of_step.drop(self._samples.computed)
            self._samples.forget_computed()
        else:
            self._restart()
        return True

    def drops(self, batches: int, backwards: int) -> bool:
        """Whether gradients that were cleared in this step may be missing in it: each backward of
        it has a batch of its own. Others were for another end, as with SAM."""
        notes = self._backwards_of_step
        has_engine = self._modules is not None and self._modules.has_engine
        is_edited = self._samples.is_edited
        is_assembled = is_edited and not self._has_no_wrapper  # of several, by the loop
        is_assembled = is_assembled and not has_engine
        return bool(notes.dropped) and batches >= backwards and not is_assembled

    def has_separate_losses(self, batches: int) -> bool:
        """Whether the backwards of this step are those of several losses of the same rows."""
        return self._backwards_of_step.are_separate(batches)

    def skipped(self, backwards: int) -> None:
        """Note that a loss scaler skipped the step, so its gradients are used by none."""
        self.counts.skip(backwards)
        if self.armed:
            self._restart()

    def _restart(self) -> None:
        notes = self._backwards_of_step
        self._reset()
        self._samples.forget()
        notes.restart()
        self._backwards_of_step = notes

    @property
    def is_sampled(self) -> bool:
        """Whether the gradients that the optimizer uses in this step were sampled."""
        return self.armed and self._samples.used is not None

    def take_used(self) -> None:
        """Sample the gradients after the reduction and before they are clipped or scaled.

        A wrapper steps groups of parameters one after the other, each with gradients that it has
        just made: then each call samples those of another group.
        """
        is_of_wrapper = self.inner_steps is not None
        if not self.armed or (self._samples.used is not None and not is_of_wrapper):
            return
        self._samples.take_used(self.optimizer(), is_of_wrapper)

    def note_clip(self, ids: set[int], limit: Any, backwards: int) -> None:
        """Note that gradients are clipped to a norm, after so many backwards of this process."""
        if self.steps and not self.is_shared and self.holds(ids):
            is_late = self.counts.none_since_step(backwards)
            alarm = self._clip_order.clipped(limit, is_late)
            self.alarms += [alarm] if alarm else []

    def begin_clip(self, ids: set[int], norm_type: float) -> None:
        """Note that gradients are clipped: those of the parameters with these ids."""
        self._clips.begin(ids, norm_type, self._watched, self._numbers)

    def end_clip(self, norm: Any, limit: Any) -> None:
        """Note by which norm, and to which one, these gradients were clipped."""
        self._clips.end(norm, limit)

    def unscale(self, scaler: Any) -> None:
        """Note that a loss scaler divides the gradients."""
        self._clips.unscale(scaler, self.armed)

    def begin_step(self, reads_inputs: bool) -> None:
        """Look at the outputs of modules in the step that begins, if it is the one to do so, and at
        the inputs of models, if nothing else says which rows they have."""
        if self._inputs is not None:
            self._inputs.end()
        modules = self._modules if reads_inputs and self.due else None
        self._inputs = RootInputs(modules) if modules is not None else None
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
            self._samples.note_without()
            assert self._sums is not None  # noqa: S101
            self._sums.end_wrapper_step()
        return inner

    def before_step(self) -> None:
        """Sample what the formula of the optimizer needs."""
        if self.inner_steps is None:
            self._compare_resume()
        if not self.armed:
            return
        self.take_used()
        samples = self._update_samples
        samples.take(self.optimizer(), self._watched, self._numbers, self.check)

    def _compare_resume(self) -> None:
        """Compare one of the first steps after a load with the loaded state."""
        if self.resume is not None:
            self.alarms += self.resume.before_step(self.optimizer())
            self.resume = None if self.resume.is_over else self.resume

    def save(
        self, path: str, content: Any, begun: Sequence[Pass], orders: Sequence[Sequence[int]] = ()
    ) -> None:
        """Note what is trained: a checkpoint is saved. ``content`` is what this rank writes alone,
        perhaps for others, ``begun`` are the epochs in whose middle it is, and ``orders`` the first
        batches of epochs that are over."""
        if self.steps and self._watched:
            optimizer = self.optimizer()
            self._note_end()
            self.states.save(self.steps, optimizer, self._watched, path, begun, orders)
            if content is not None and not self.is_complete:
                self.states.note_gathered(self.steps, optimizer, self._watched, path, content)

    def note_file(self, path: str, content: Any, has_optimizer: bool) -> None:
        """Note the weights that a file gets, perhaps with an optimizer's state: a checkpoint may
        have several files."""
        if not self.steps or not self._watched or self._sums is None:
            return
        if self.is_complete:
            self.states.note_weights(self.steps, self.optimizer(), self._watched, content)
        # A file of weights alone may be one of the beginning on purpose, to go back to them.
        first = self._sums.first if self.is_complete and has_optimizer else torch.zeros(0)
        weights = written_weights(MODEL, self.steps, path, self._watched, first, content)
        if weights is not None:
            self.states.add(*weights)

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
            self.resume, self.is_resumed = Resume(optimizer, schedules), True
            self._trained = ()  # the weights may be others now

    def after_step(self, backwards: int, batches: int = 0) -> bool:
        """Count a step, before which ``backwards`` backwards ran in all, and for which so many
        batches were read; returns whether it was checked."""
        self.costs.end_step(self.armed)
        self.steps += 1
        self._final.end_step(self.steps, self._watched)
        self.skips.taken()
        if self._waits == MOST_WAITS and not self.is_left_out:
            self.next_step, self._waits = self.steps + 1, 0
        if self.next_step == self.steps and not self.armed:
            self.next_step = self.steps + 1  # no backward was before it: a state is made by a step
        # A step that was skipped may be in the first one, unless its gradients were to be reduced
        # with later ones.
        notes = self._backwards_of_step
        has_skipped = bool(self.armed and notes.dropped and not notes.drops_parts)
        self.counts.end_step(backwards, batches, has_skipped)
        self._was_alone = self.may_be_alone if self.armed else self._was_alone
        return self.armed

    # -- the post --

    def describe_again(self) -> None:
        """Describe the parameters in the next post: rank 0 has lost an earlier one."""
        self._described = False

    def post(self, rank: int) -> Post:
        """What this rank saw in the checked step that ends now."""
        optimizer, modules = self.optimizer(), self._modules
        samples, notes, updates = self._samples, self._backwards_of_step, self._update_samples
        is_drop = self.drops(self.counts.batches, self.counts.last)
        if is_drop and notes.dropped_sum is not None and samples.computed is not None:
            samples.computed = samples.computed + notes.dropped_sum
        post = Post(rank, self.number, self.check, self.steps, kind=kind_of(optimizer))
        post.tensors = self._tensors()
        if not self._described:
            post.described = [one.described for one in self._watched]
            assert self._sums is not None  # noqa: S101
            post.tensors["first_bits"] = self._sums.first
            self._described = True
        if self._inputs is not None and (sums := self._inputs.end()) is not None:
            post.tensors["targets_sum"] = sums
        if self._outputs is not None and self._outputs.is_open:
            self._outputs.end()
            post.outputs.calls, post.outputs.opaque = self._outputs.calls, self._outputs.opaque
            post.tensors["calls"] = self._outputs.sizes()
        post.numbers = self._numbers if len(self._numbers) < len(self._watched) else []
        samples.describe(post)
        post.loop.hooked = has_own_hooks(optimizer)
        post.losses.separate = self.has_separate_losses(self.counts.batches)
        post.updates, post.gradients.dropped = updates.updates, notes.dropped if is_drop else 0
        post.losses.is_whole = self.counts.is_whole
        post.losses.equal_steps = self.counts.equal_steps
        if not self._is_wrapped:
            self.foreign = post.gradients.foreign = count_foreign(optimizer, modules)
        post.loop.outer, post.loop.unreduced = self.is_shared, not notes.reduces
        post.loop.joined = self.joined
        post.loop.averages = modules.averages if modules else ""
        post.gradients.unheld = [
            one.described.name
            for one in self._watched
            if not one.described.optimized and one.parameter.grad is not None
        ]
        post.loop.fused_scale = updates.has_fused_scale
        post.alarms, self.alarms = self.alarms, []
        self._add_states(post)
        self._leftovers.note(self._watched)
        self.next_step = self.steps + 1 if self.check < FIRST_CHECKS else None
        self.costs.end_check()
        return post

    def _tensors(self) -> dict[str, Tensor]:
        """What the checked step that ends now has sampled."""
        assert self._sums is not None  # noqa: S101
        weights = [self._watched[number].weight for number in self._numbers]
        values = [Positions.of(weight.numel()).values(weight) for weight in weights]
        tensors = {
            **self._sums.tensors(),
            **self._samples.tensors(),
            **self._update_samples.tensors(),
            **self._clips.tensors(),
            "weights": joined([sample for sample in values if len(sample)]),
            "weight_sizes": largest(weights),
        }
        return {name: tensor for name, tensor in tensors.items() if tensor is not None}

    def last_post(self, rank: int) -> Post:
        """What rank 0 does not know yet when the training is over."""
        post = Post(rank, self.number, LAST, self.steps)
        post.loop.joined = self.joined
        self._note_end()
        self._final.describe(post)
        self._add_states(post)
        return post

    def _note_end(self) -> None:
        if world() > 1 and self._sums is not None and self._modules and not self.is_inner:
            self._final.note(self._watched, self._sums, self._modules)

    def _add_states(self, post: Post) -> None:
        post.states, sums = self.states.take()
        if sums is not None:
            post.tensors["states"] = sums

    # -- the cost --

    def spend(self, seconds: float) -> None:
        """Note what a handler cost."""
        self.costs.spend(seconds)

    def cost(self, thread: float) -> Cost:
        """What checks have cost so far; ``thread`` are the seconds of the other thread."""
        return self.costs.total(self.check, thread)
