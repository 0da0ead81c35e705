"""A training: one optimizer of this rank, its steps, and what is posted of the checked ones.

In a step that is not checked, only counters move. ``post`` copies the samples of a checked one once
(see ``checked_step``), and does not wait for the device.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from ...training.parameters import Modules
from ..posting.budget import FIRST_CHECKS, CheckCosts
from ..posting.posts import LAST, Alarm, Pass, Post
from ..sampling.clips import ClipOrder
from ..sampling.module_outputs import ForwardHooks
from ..sampling.optimizers import has_own_hooks
from ..sampling.skips import Skips
from ..states.resumes import Resume
from ..states.training_states import States
from .checked_step import CheckedStep, Guarded
from .trained_model import TrainedModel

UNNUMBERED = -1
"""The number of an optimizer whose first step will number it."""


MOST_WAITS = 16
"""Steps of other optimizers for which a check waits: one that nobody steps would stay armed."""
MOST_NAPS = 3
"""Checks given up so, after which an optimizer is not checked again."""


class BackwardCounts:
    """How many backwards the steps of a training have, its first and its last one, and how many
    batches are read for them."""

    def __init__(self, backwards: int) -> None:
        """``backwards`` ran in this process before, for other trainings."""
        self.first = self.last = 0
        self.equal_steps = 0
        """The steps in a row with as many as the last one."""
        self.batches = 0
        """The batches that were read for the last step."""
        self.is_whole = False
        """Whether the last step had as many backwards as the first, and several."""
        self.joined = 0
        """The steps before the last end of a ``join()``."""
        self.total = backwards
        """Those of this process that belong to no later step."""

    def end_step(self, backwards: int, batches: int, has_skipped: bool) -> None:
        """Count a step, before which ``backwards`` backwards ran in all, and for which so many
        batches were read. ``has_skipped`` says that a step before it was skipped."""
        before, self.last, self.batches = self.last, backwards - self.total, batches
        self.equal_steps = self.equal_steps + 1 if self.last == before else 1
        self.total = backwards
        if not self.first and not has_skipped:
            self.first = self.last
        self.is_whole = self.last == self.first > 1

    def describe(self, post: Post) -> None:
        """Say in a post what is known of the backwards of the last step."""
        post.losses.is_whole, post.losses.equal_steps = self.is_whole, self.equal_steps
        post.loop.joined = self.joined


class Turn:
    """The checks of one optimizer: which one it is, and when the next one is."""

    def __init__(self) -> None:
        self.check = 0
        """The number of checks that have begun."""
        self.next_step: int | None = 1
        """The next checked step; None until rank 0 has chosen it."""
        self._waits = self._naps = 0

    def begin(self) -> None:
        """Note that a check begins."""
        self.check += 1
        self._waits = 0

    def wait(self) -> bool:
        """Note that another optimizer stepped during the check; returns whether it is given up."""
        self._waits += 1
        if self._waits == MOST_WAITS:
            self._naps += 1
            self.next_step = None
        return self._waits == MOST_WAITS

    @property
    def has_waited(self) -> bool:
        """Whether another optimizer stepped during the check."""
        return bool(self._waits)

    def leave_out(self) -> None:
        """Check this optimizer no more."""
        self._naps, self.next_step = MOST_NAPS, None

    @property
    def is_left_out(self) -> bool:
        """Whether it steps so seldom that it is not checked."""
        return self._naps == MOST_NAPS

    def end_step(self, steps: int, is_checked: bool) -> None:
        """Note that so many steps were taken, the last of them checked or not."""
        if self._waits == MOST_WAITS and not self.is_left_out:
            self.next_step, self._waits = steps + 1, 0
        if self.next_step == steps and not is_checked:
            self.next_step = steps + 1  # no backward was before it: a state is made by a step


@dataclass
class Role:
    """What an optimizer is to other ones."""

    is_inner: bool = False
    """Whether another optimizer steps this one: it ends before ranks have all new weights."""
    is_shared: bool = False
    """Whether another optimizer has the same parameters."""
    is_wrapped: bool = False
    """Whether a wrapper makes its steps: then it may hold copies of the weights."""
    inner_steps: int | None = None
    """The steps that a wrapper made the optimizer take in the step that runs now: one for each
    group, none if it skips it; None outside of a wrapper's step."""


class Training:
    """One optimizer, and its steps."""

    def __init__(self, optimizer: Any, number: int, backwards: int = 0) -> None:
        """``backwards`` ran in this process before, for other trainings."""
        self.optimizer: Callable[[], Any] = weakref.ref(optimizer, self._forget)
        self.number, self.steps = number, 0
        self.role, self.turn, self.model = Role(), Turn(), TrainedModel()
        self.checked = CheckedStep(self.model, 0)
        """The step that is checked now, or was last."""
        self.alarms: list[Alarm] = []
        self.skips, self._clip_order = Skips(), ClipOrder()
        self.counts, self.costs = BackwardCounts(backwards), CheckCosts()
        self.forward, self.states = ForwardHooks(), States()

    def _forget(self, _: Any) -> None:
        """Let go of the model, when nobody has its optimizer any more."""
        if CheckedStep is None:  # the interpreter ends, and has cleared this module
            return
        self.disarm()
        with contextlib.suppress(Exception):  # what it held may be gone, too
            self._note_end()
        self.model.watched, self.model.modules, self.model.sums = [], None, None
        self.checked = CheckedStep(self.model, 0)

    @property
    def due(self) -> bool:
        """Whether the step that is being computed is to be checked."""
        return self.steps + 1 == self.turn.next_step and self.optimizer() is not None

    @property
    def armed(self) -> bool:
        """Whether the step that is being computed is checked."""
        return self.checked.is_armed

    # -- arming --

    def arm(
        self, parameter_ids: set[int], modules: Callable[[], Modules], guarded: Guarded
    ) -> None:
        """Begin to look at this step: its first backward begins. ``parameter_ids`` are those of
        the parameters of all optimizers, ``modules`` finds those of this process, and ``guarded``
        makes a hook that never raises."""
        started = time.perf_counter()
        if self.model.find(self.optimizer(), parameter_ids, modules):
            self.costs.setup += time.perf_counter() - started
        self.costs.begin_check()
        self.turn.begin()
        self.checked = CheckedStep(self.model, self.turn.check)
        self.checked.arm(guarded)

    def disarm(self) -> None:
        """Remove all hooks."""
        if self.armed:
            self.checked.disarm()
            self.forward.end_outputs()

    def wait(self) -> None:
        """Note that another optimizer stepped during the check, and give it up at last."""
        if self.turn.wait():
            self.disarm()

    def leave_out_if_outer(self) -> None:
        """Check it no more if another optimizer stepped the same parameters during its check: what
        it uses is no gradient."""
        if self.role.is_shared and self.turn.has_waited:
            self.disarm()
            self.turn.leave_out()

    def shares(self, optimizer: Any) -> bool:
        """Whether another optimizer has a parameter of this one."""
        parameter = next((p for g in self.optimizer().param_groups for p in g["params"]), None)
        return any(p is parameter for group in optimizer.param_groups for p in group["params"])

    # -- gradients --

    def begin_backward(self, place: Hashable) -> bool:
        """Note that a backward begins at a place of the loop's code. Returns whether the loop
        itself has cleared the gradients of those before it."""
        has_cleared = self.checked.samples.have_lost_one()
        if has_cleared:
            self.cleared(True, 0)
        self.checked.backwards.begin(place, self.model.modules)
        return has_cleared

    def cleared(self, is_only_one: bool, backwards: int) -> bool:
        """Note that gradients are cleared before a step used them: another optimizer's turn, a loop
        that skips a step or computes gradients for another end, or a fault. ``backwards`` ran in
        this process before. Returns whether there were gradients."""
        if not self.armed or not self.checked.samples.types or self.checked.is_sampled:
            return False
        is_step = 0 < self.counts.first <= backwards - self.counts.total
        if is_step:  # the loop skips it
            self.counts.total = backwards
        if is_only_one and not is_step:
            self.checked.drop()
        else:
            self.checked.restart()
        return True

    def skipped(self, backwards: int) -> None:
        """Note that a loss scaler skipped the step, so its gradients are used by none."""
        self.counts.total = backwards
        if self.armed:
            self.checked.restart()

    def take_used(self) -> None:
        """Sample the gradients after the reduction and before they are clipped or scaled.

        A wrapper steps groups of parameters one after the other, each with gradients that it has
        just made: then each call samples those of another group.
        """
        is_of_wrapper = self.role.inner_steps is not None
        if self.armed and (is_of_wrapper or not self.checked.is_sampled):
            self.checked.samples.take_used(self.optimizer(), is_of_wrapper)

    def note_clip(self, limit: Any, backwards: int) -> None:
        """Note that gradients are clipped to a norm, after so many backwards of this process."""
        if self.steps and not self.role.is_shared:
            is_late = backwards == self.counts.total  # none ran since the last step
            alarm = self._clip_order.clipped(limit, is_late)
            self.alarms += [alarm] if alarm else []

    # -- the step --

    def begin_wrapper_step(self) -> None:
        """Note that a wrapper begins a step: it makes the optimizer take several, or none."""
        self.role.inner_steps, self.role.is_wrapped = 0, True
        self._compare_resume()

    def end_wrapper_step(self) -> int:
        """Note that a wrapper's step has ended; returns how many the optimizer took."""
        inner, self.role.inner_steps = self.role.inner_steps or 0, None
        if inner and self.armed and self.model.sums is not None:
            self.checked.samples.note_without()
            self.model.sums.end_wrapper_step()
        return inner

    def before_step(self) -> None:
        """Sample what the formula of the optimizer needs."""
        if self.role.inner_steps is None:
            self._compare_resume()
        if self.armed:
            alarm = self.states.begun_again(self.optimizer())
            self.alarms += [alarm] if alarm else []
            self.take_used()
            step, watched = self.checked, self.model.watched
            step.updates.take(self.optimizer(), watched, step.numbers, step.check)

    def _compare_resume(self) -> None:
        """Compare one of the first steps after a load with the loaded state."""
        resume = self.states.next_resume
        if resume is not None:
            self.alarms += resume.before_step(self.optimizer())
            self.states.next_resume = None if resume.is_over else resume

    def after_step(self, backwards: int, batches: int = 0) -> bool:
        """Count a step, before which ``backwards`` backwards ran in all, and for which so many
        batches were read; returns whether it was checked."""
        self.costs.end_step(self.armed)
        self.steps += 1
        self.model.final.end_step(self.steps, self.model.watched)
        self.skips.taken()
        self.turn.end_step(self.steps, self.armed)
        # A step that was skipped may be in the first one, unless its gradients were to be reduced
        # with later ones.
        notes = self.checked.backwards
        has_skipped = bool(self.armed and notes.dropped and not notes.drops_parts)
        self.counts.end_step(backwards, batches, has_skipped)
        self.model.was_alone = self.checked.is_unreduced if self.armed else self.model.was_alone
        return self.armed

    # -- saves and loads --

    def save(self, path: str, content: Any, begun: Sequence[Pass], orders: list[list[int]]) -> None:
        """Note what is trained: a checkpoint is saved. ``content`` is what this rank writes alone,
        perhaps for others, ``begun`` are the epochs in whose middle it is, and ``orders`` the first
        batches of epochs that are over."""
        watched = self.model.watched
        if self.steps and watched:
            optimizer = self.optimizer()
            self._note_end()
            self.states.save(self.steps, optimizer, watched, path, begun, orders)
            if content is not None and not self.model.is_complete:
                self.states.note_gathered(self.steps, optimizer, watched, path, content)

    def note_file(self, path: str, content: Any) -> None:
        """Note the weights that a file gets: a checkpoint may have several files."""
        watched = self.model.watched
        if self.steps and watched:
            if self.model.is_complete:
                self.states.note_weights(self.steps, self.optimizer(), watched, content)
            self.states.note_values(self.steps, watched, path, content)

    def go_on(self) -> None:
        """Note what is trained, if it was loaded since the last step."""
        if self.states.loaded is not None and self.model.watched:
            self.states.resume(self.optimizer(), self.model.watched)

    def loaded(self, schedules: Callable[[Any], list[Any]]) -> None:
        """Note that the optimizer's state was loaded; ``schedules`` finds those of its rates."""
        optimizer = self.optimizer()
        self.states.load(self.steps, optimizer)
        # A package may load an optimizer's first state into itself, to move it to a device.
        is_first = not self.steps and self.states.changes_rates(optimizer)
        if any(optimizer.state.values()) or is_first:
            self.states.next_resume, self.states.is_resumed = Resume(optimizer, schedules), True
            self.model.trained = ()

    # -- the post --

    def post(self, rank: int) -> Post:
        """What this rank saw in the checked step that ends now."""
        optimizer = self.optimizer()
        post = Post(rank, self.number, self.turn.check, self.steps)
        self.checked.describe(post, self.counts.batches, self.counts.last)
        self.model.describe(post, optimizer, self.role.is_wrapped)
        self.forward.describe(post)
        self.counts.describe(post)
        post.loop.hooked, post.loop.outer = has_own_hooks(optimizer), self.role.is_shared
        post.alarms, self.alarms = self.alarms, []
        self.states.describe(post)
        is_first = self.turn.check < FIRST_CHECKS
        self.turn.next_step = self.steps + 1 if is_first else None
        self.costs.end_check()
        return post

    def last_post(self, rank: int) -> Post:
        """What rank 0 does not know yet when the training is over."""
        post = Post(rank, self.number, LAST, self.steps)
        post.loop.joined = self.counts.joined
        self._note_end()
        self.model.final.describe(post)
        self.states.describe(post)
        return post

    def _note_end(self) -> None:
        if not self.role.is_inner:
            self.model.note_end()
