"""What guard notes of a training of this process: its gradients, clipping and saves in a step."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from harness.rank import events
from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import LAST, Post
from harness.rank.guard.sampling.samples import MOST, turns
from harness.rank.guard.states.training_states import States
from harness.rank.guard.trainings import training as trainings
from harness.rank.guard.trainings.training import Training
from harness.rank.training.parameters import Modules, watched

Weights = dict[str, Tensor]
Edit = Callable[[Training, nn.Module], None]


def descent(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1)


def begin_check(model: nn.Module, optimizer: torch.optim.Optimizer) -> Training:
    """A training in a check."""
    training = Training(optimizer, 0)
    others = set(Modules().parameters)  # models of other tests may still be there
    others -= set(map(id, model.parameters()))
    training.arm(others, Modules, lambda handler: handler)
    return training


def backward(training: Training, model: nn.Module, place: str = "") -> None:
    training.begin_backward(place)
    model(torch.ones(1, 3)).sum().backward()


def post_of_step(training: Training, optimizer: Any, backwards: int = 1, batches: int = 1) -> Post:
    """Take the step of a check; returns what the training posts then."""
    training.before_step()
    optimizer.step()
    assert training.after_step(backwards, batches)
    post = training.post(0)
    training.disarm()
    return post


def checked_step(model: nn.Module, optimizer: Any, edit: Edit) -> tuple[Training, Post]:
    """A training after a checked step, with an edit before the step; and what it posts."""
    training = begin_check(model, optimizer)
    backward(training, model)
    training.checked.samples.end_backward()
    edit(training, model)
    return training, post_of_step(training, optimizer)


def nothing(*_: Any) -> None:
    pass


# -- gradients that are cleared before a step uses them: lost, or computed for another end --


def post_of(places: str, batches: int, in_backward: Callable[[nn.Module], None] = nothing) -> Post:
    """The post of a step with a backward at each place. The gradients of all but the last one are
    cleared afterwards, or taken by a wrapper in the backward."""
    model = nn.Linear(3, 2)
    optimizer = descent(model)
    training = begin_check(model, optimizer)
    for count, place in enumerate(places, 1):
        backward(training, model, place)
        if count < len(places):
            in_backward(model)
        training.checked.samples.end_backward()
        if count < len(places):
            if in_backward is nothing:
                training.cleared(True, count)
            optimizer.zero_grad()
    return post_of_step(training, optimizer, len(places), batches)


def take_gradients(model: nn.Module) -> None:
    for weight in model.parameters():
        weight.grad = None


@pytest.mark.parametrize(
    ("places", "batches", "in_backward", "times"),
    [
        ("aaa", 3, take_gradients, 3),  # a wrapper takes them
        ("aa", 1, nothing, 1),  # they are computed for another end
        ("ab", 1, nothing, 1),
    ],
)
def test_gradients_that_are_not_lost(
    places: str, batches: int, in_backward: Any, times: int
) -> None:
    post = post_of(places, batches, in_backward)
    used = post.tensors["used"]
    assert post.gradients.dropped == 0
    assert torch.equal(post.tensors["computed"][: len(used)], times * used)


def test_cleared_gradients_are_those_of_a_micro_batch_if_they_were_to_be_reduced_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not post_of("aaa", batches=3).losses.is_whole

    monkeypatch.setattr(Modules, "reduces_later", lambda self: True)
    assert post_of("aaa", batches=3).losses.is_whole


@pytest.mark.parametrize(("is_wrapped", "foreign"), [(False, 2), (True, 0)])
def test_copies_that_a_wrapper_steps_are_not_foreign(is_wrapped: bool, foreign: int) -> None:
    model = nn.Linear(3, 2)
    copies = [weight.detach().clone().requires_grad_() for weight in model.parameters()]
    optimizer = torch.optim.SGD(copies, 0.1)

    def wrap(training: Training, _: nn.Module) -> None:
        if is_wrapped:
            training.begin_wrapper_step()
            training.role.inner_steps = 1
            training.end_wrapper_step()

    assert checked_step(model, optimizer, wrap)[1].gradients.foreign == foreign


# -- clipping --


def clips(*calls: tuple[int, float]) -> Edit:
    """Clip so many parameters by a norm of a kind, as often as there are calls."""

    def clip(training: Training, model: nn.Module) -> None:
        for count, kind in calls:
            step, parameters = training.checked, list(model.parameters())[:count]
            ids = set(map(id, parameters))
            step.clips.begin(ids, kind, training.model.watched, step.numbers)
            step.clips.end(nn.utils.clip_grad_norm_(parameters, 0.5, kind), 0.5)

    return clip


def test_norms_are_those_before_the_clipping() -> None:
    model = nn.Linear(3, 2)
    _, post = checked_step(model, descent(model), clips((2, 2.0)))
    norm, limit = post.tensors["clipped"].tolist()
    assert limit == 0.5
    assert norm == pytest.approx(float(post.tensors["norms"].norm())) == pytest.approx(math.sqrt(8))
    assert float(post.tensors["after"].norm()) == pytest.approx(0.5)


@pytest.mark.parametrize("calls", [[(1, 2.0)], [(2, math.inf)], [(2, 2.0)] * 2])
def test_a_part_of_the_gradients_and_other_norms_are_not_compared(calls: Any) -> None:
    model = nn.Linear(3, 2)
    assert "norms" not in checked_step(model, descent(model), clips(*calls))[1].tensors


def test_clipping_is_late_if_no_backward_ran_since_the_step() -> None:
    training = Training(torch.optim.SGD([torch.zeros(2)], 0.1), 0)
    for step in range(1, 5):
        training.note_clip(1.0, backwards=step)  # in time
        training.after_step(backwards=step)
    assert not training.alarms
    for step in range(5, 9):
        training.after_step(backwards=step)
        training.note_clip(1.0, backwards=step)
    assert [alarm.kind for alarm in training.alarms] == ["late"]


# -- a file gets weights that are not empty --


def filled(weights: Weights, value: float) -> Weights:
    return {name: torch.full_like(weight, value) for name, weight in weights.items()}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (lambda first, now: {"state_dict": first}, []),  # an average that begins later
        (lambda first, now: {"model": filled(now, 0.0)}, ["empty"]),
        (lambda first, now: filled(now, torch.nan), ["empty"]),
        (lambda first, now: {"model": now}, []),
        (lambda first, now: {"model": {n: v.clone() for n, v in now.items()}}, []),
        (lambda first, now: {"model": now, "reference": first}, []),
        (lambda first, now: {"model": {n: v.lerp(v + 1, 0.5) for n, v in now.items()}}, []),
        (lambda first, now: {"model": {**now, "bias": first["bias"]}}, []),
        (lambda first, now: {"weight": first["weight"]}, []),
        (lambda first, now: {"model": {n: v.bfloat16() for n, v in first.items()}}, []),
    ],
)
def test_file_with_other_weights_is_told(content: Any, expected: list[str]) -> None:
    model = nn.Linear(3, 2)
    optimizer = descent(model)
    first = {name: value.clone() for name, value in model.state_dict().items()}
    training, _ = checked_step(model, optimizer, nothing)
    training.model.is_complete = True  # other tests of this process may have a group
    training.note_file("/folder/last.ckpt", content(first, model.state_dict()))
    training.save("/folder/last.ckpt", None, [], [])
    post = training.last_post(0)
    assert post.check == LAST
    assert [alarm.kind for alarm in judge([unpacked(packed(post))], Memory())] == expected


def test_another_model_with_the_same_names_is_not_looked_at() -> None:
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    optimizer = torch.optim.SGD([p for model in models for p in model.parameters()], 0.1)
    weights = [
        replace(weight, described=replace(weight.described, name=("weight", "bias")[number % 2]))
        for number, weight in enumerate(watched(optimizer, Modules(), set())[:4])
    ]
    states, post = States(), Post(0, 0, LAST)
    states.note_values(1, weights, "last.ckpt", {"model": models[0].state_dict()})
    states.describe(post)
    assert [part[0] for part in post.states[0].parts] == ["weight", "bias"]


# -- what is kept, and when a check is put off --


def test_training_of_a_package_that_reduces_is_not_alone() -> None:
    """Its forward may call collectives, which are no averages of weights."""
    model = nn.Linear(3, 3)
    optimizer = descent(model)
    training = begin_check(model, optimizer)
    assert training.checked.is_unreduced
    assert training.model.modules is not None
    training.model.modules.has_engine = True
    assert not training.checked.is_unreduced
    training.disarm()


def test_step_without_a_backward_puts_the_check_off() -> None:
    """DeepSpeed steps once without gradients, to make the optimizer's state."""
    optimizer = torch.optim.SGD([torch.zeros(1)], 1.0)
    training = Training(optimizer, 0)
    assert not training.after_step(0)
    assert training.due


def test_second_training_of_a_process_counts_its_own_micro_batches() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1)], 1.0)
    training = Training(optimizer, 1, backwards=6)
    for backwards in range(7, 13):
        training.after_step(backwards)
    assert training.counts.first == 1
    assert training.alarms == []


def test_update_of_each_parameter_is_compared_in_turn() -> None:
    """Also where a part has more parameters than updates are compared in a check."""
    model = nn.ParameterList(nn.Parameter(torch.ones(1)) for _ in range(8 * MOST))
    optimizer = descent(model)
    training = begin_check(model, optimizer)
    compared: set[int] = set()
    for _ in range(4 * turns(len(model))):
        for parameter in model:
            parameter.grad = torch.ones(1)
        training.before_step()
        compared |= {update.parameter for update in training.post(0).parameters.updates}
        training.disarm()
        training.arm(set(), Modules, lambda hook: hook)
    assert compared == set(range(len(model)))


def test_backward_of_the_graph_is_an_event_whoever_calls_it() -> None:
    weight, roots = torch.ones(2, requires_grad=True), []
    subscription = events.instrument.on(
        events.GraphBackward, before=lambda event: roots.append(event.owner)
    )
    loss = weight.sum()
    loss.backward()
    roots_of_torch: Any = (part * 2 for part in weight)
    torch.autograd.backward(roots_of_torch)
    subscription.end()
    assert roots[0] is loss
    assert roots[1:] == [None]
    assert weight.grad is not None
    assert weight.grad.tolist() == [3.0, 3.0]


def test_model_is_freed_with_its_optimizer() -> None:
    model = nn.Linear(3, 3)
    optimizer = descent(model)
    training = begin_check(model, optimizer)
    weight: Any = weakref.ref(model.weight)
    del model, optimizer
    gc.collect()
    assert weight() is None
    assert not training.due


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_an_optimizer_that_lives_until_python_ends_is_let_go_without_a_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), 0.1)
    training = Training(optimizer, 0)
    monkeypatch.setattr(trainings, "CheckedStep", None)  # as Python clears modules at its end
    del optimizer
    gc.collect()

    assert training.optimizer() is None


def test_model_of_a_destroyed_group_does_not_stop_guard() -> None:
    """A script trains, destroys its process group, and begins again with another one."""
    models = []
    for _ in range(2):
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        models.append(DistributedDataParallel(nn.Linear(3, 2)))
        modules = Modules()
        dist.destroy_process_group()
    first, second = (model.module.weight for model in models)
    assert modules.ranks[id(second)] == [0]
    assert id(first) not in modules.ranks
