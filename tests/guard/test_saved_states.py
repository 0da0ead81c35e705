"""Saves and loads are compared by sums of bits, on any number of ranks and in a later process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.rank.events import AsyncSave, Save
from harness.rank.guard.checks.views import Memory
from harness.rank.guard.judge import judge
from harness.rank.guard.posting.packing import packed, unpacked
from harness.rank.guard.posting.posts import LAST, Alarm, Part, Post, TrainingState
from harness.rank.guard.reporting.account import SAVED_STATES, SavedStates
from harness.rank.guard.states.training_states import (
    FILLED,
    PARTED,
    RESUMED,
    SAVED,
    WEIGHT,
    WRITTEN,
    States,
)
from harness.rank.guard.subscribers.saves import Checkpoints
from harness.rank.training.parameters import Modules, watched

Tensors = dict[tuple[str, str], Tensor]


def tensors() -> Tensors:
    """The weights and moments of a small model."""
    generator = torch.Generator().manual_seed(0)
    return {
        (name, kind): torch.randn(6, 4, generator=generator)
        for name in ("body", "norm", "head")
        for kind in (WEIGHT, "exp_avg", "exp_avg_sq")
    }


def posts(values: Tensors, ranks: int = 1, **fields: object) -> list[Post]:
    """What ranks post that have an equal part of each tensor."""
    posts = []
    for rank in range(ranks):
        state = TrainingState(**{"event": SAVED, "step": 5, "count": 5.0, **fields})  # type: ignore[arg-type]
        parts = {key: value.chunk(ranks)[rank] for key, value in values.items()}
        state.parts = [
            list(vars(Part(*key, f"{rank} of {ranks}", part.numel(), "float32", 4)).values())
            for key, part in parts.items()
        ]
        sums = [part.view(torch.int32).sum(dtype=torch.int32).long() for part in parts.values()]
        posts.append(Post(rank, 0, LAST, states=[state]))
        posts[-1].tensors["states"] = torch.stack(sums)
    return [unpacked(packed(post)) for post in posts]


def alarms_of_load(
    values: Tensors, memory: Memory, ranks: int = 1, **fields: object
) -> list[Alarm]:
    """The alarms of a load."""
    return judge(posts(values, ranks, **{"event": RESUMED, "step": 0, **fields}), memory)


def memory(ranks: int = 1, **fields: object) -> Memory:
    """What is known after a save."""
    memory = Memory()
    assert judge(posts(tensors(), ranks, **fields), memory) == []
    return memory


@pytest.mark.parametrize(("ranks", "later"), [(1, 1), (1, 2), (3, 1), (3, 2)])
def test_ranks_in_any_number_go_on_with_the_state_of_a_save(ranks: int, later: int) -> None:
    saved = memory(ranks)
    assert alarms_of_load(tensors(), saved, later) == []
    assert saved.compared["checkpoints"] == 9
    changed = tensors()
    changed["norm", "exp_avg"][1, 1] += 1
    (alarm,) = alarms_of_load(changed, saved, later)
    assert (alarm.kind, alarm.parameters, alarm.ranks) == ("state", ["norm"], list(range(later)))


Change = Callable[[Tensors], None]


def _lost_weight(values: Tensors) -> None:
    values["head", WEIGHT].zero_()


def _others(*kinds: str) -> Change:
    """All tensors of these kinds have other values."""

    def change(values: Tensors) -> None:
        for name in ("body", "norm", "head"):
            for kind in kinds:
                values[name, kind].add_(1)

    return change


MOMENTS = ("exp_avg", "exp_avg_sq")
_other_weights, _other_state = _others(WEIGHT), _others(*MOMENTS)


def _other_state_and_a_weight(values: Tensors) -> None:
    _other_state(values)
    _lost_weight(values)


def test_state_that_is_new_after_the_load_of_an_engine_is_told_if_it_was_to_be_loaded() -> None:
    saved = memory(path="/checkpoint")
    fresh = {key: value for key, value in tensors().items() if key[1] == WEIGHT}
    assert alarms_of_load(fresh, saved, path="/checkpoint") == []
    _other_weights(fresh)
    assert alarms_of_load(fresh, saved, path="/another", is_promised=True) == []
    alarms = alarms_of_load(fresh, saved, path="/checkpoint", is_promised=True)
    assert [alarm.kind for alarm in alarms] == ["state", "weights"]


@pytest.mark.parametrize(
    ("change", "path", "kinds"),
    [
        (_other_state, "", ["state"]),
        (_other_state, "/folder", ["state"]),
        (_other_weights, "", ["weights"]),
        (_others(WEIGHT, *MOMENTS), "/folder", ["state", "weights"]),
        (_others(WEIGHT, *MOMENTS), "/other", []),
        (_other_state_and_a_weight, "", []),
    ],
)
def test_package_that_loads_a_whole_training_gives_back_all_of_it(
    change: Change, path: str, kinds: list[str]
) -> None:
    """It is the save with these weights, or moments, or one of whose files is in its folder."""
    saved, values = memory(path="/folder/optimizer.bin"), tensors()
    assert alarms_of_load(values, saved, path=path, is_promised=True) == []
    change(values)
    alarms = alarms_of_load(values, saved, path=path, is_promised=True)
    assert [alarm.kind for alarm in alarms] == kinds


@pytest.mark.parametrize(("has_all_weights", "kinds"), [(True, ["state"]), (False, [])])
def test_without_moments_all_weights_say_which_save_is_loaded(
    has_all_weights: bool, kinds: list[str]
) -> None:
    """An optimizer around SGD keeps slow weights; a new training may begin with some weights."""
    values = {key: value for key, value in tensors().items() if key[1] == WEIGHT}
    values |= {(name, "Outer.slow"): value + 1 for (name, _), value in values.items()}
    judged = Memory()
    judge(posts(values), judged)
    values["body", "Outer.slow"].zero_()
    if not has_all_weights:
        _lost_weight(values)
    assert [alarm.kind for alarm in alarms_of_load(values, judged)] == kinds


def test_ranks_that_save_files_of_their_own_save_one_state() -> None:
    parts = posts(tensors(), 2)
    for post in parts:
        post.states[0].path = f"/rank{post.rank}.pt"
    judged = Memory()
    assert judge(parts, judged) == []
    (saved,) = judged.saved
    assert saved.ranks == [0, 1]


@pytest.mark.parametrize("content", ["", "[{}]", "[1]", '{"a": 1}'])
def test_damaged_file_of_saved_states_is_no_error(tmp_path: Path, content: str) -> None:
    (tmp_path / SAVED_STATES).write_text(content)
    assert SavedStates(str(tmp_path)).states == []


def test_folder_that_cannot_be_written_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = SavedStates(str(tmp_path / "absent"))
    saved.write()
    saved.write()
    assert len(capsys.readouterr().err.splitlines()) == 1


def _file_state(event: str, file: Path, weight: Tensor, rate: float, step: int = 3) -> list[Post]:
    states = States()
    content = {"model": {"weight": weight}, "groups": [{"lr": rate, "name": "all"}]}
    states.note_file(event, step, str(file), content)
    return [described(states)]


@pytest.mark.parametrize(
    ("weight", "rate", "kinds"), [(1.0, 0.5, []), (2.0, 0.5, ["file"]), (1.0, 0.1, ["numbers"])]
)
def test_what_is_filled_from_a_file_is_what_was_written(
    tmp_path: Path, weight: float, rate: float, kinds: list[str]
) -> None:
    judged = Memory()
    judge(_file_state(WRITTEN, tmp_path, torch.ones(3), 0.5), judged)
    filled = _file_state(FILLED, tmp_path, torch.full((3,), weight), rate)
    assert [alarm.kind for alarm in judge(filled, judged)] == kinds


def test_file_that_was_written_again_is_not_compared_by_a_later_process(tmp_path: Path) -> None:
    file = tmp_path / "checkpoint"
    file.write_text("first")
    saved = SavedStates(str(tmp_path))
    judge(_file_state(WRITTEN, file, torch.ones(3), 0.5), Memory(saved=saved.states))
    saved.write()

    def alarms() -> list[Alarm]:
        later = Memory(saved=SavedStates(str(tmp_path)).states)
        return judge(_file_state(FILLED, file, torch.zeros(3), 0.5), later)

    assert [alarm.kind for alarm in alarms()] == ["file"]
    file.write_text("the second")
    assert alarms() == []


Weights = dict[str, Tensor]


def stepped() -> tuple[nn.Linear, torch.optim.Optimizer]:
    """A model and its optimizer after a step."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return model, optimizer


def described(states: States) -> Post:
    """What a rank posts of its states."""
    post = Post(0, 0, LAST)
    states.describe(post)
    return unpacked(packed(post))


@pytest.mark.parametrize(
    ("files", "is_in_files"),
    [
        (lambda weights: [{"model": weights}], True),
        (lambda weights: [], False),
        (lambda weights: [{"weight": weights["weight"]}, {"bias": weights["bias"]}], True),
        (lambda weights: [{name: value * 0.9 for name, value in weights.items()}], False),
    ],
)
def test_files_have_the_weights_that_are_trained_or_also_others(
    files: Callable[[Weights], list[object]], is_in_files: bool
) -> None:
    model, optimizer = stepped()
    states, ids = States(), set(map(id, model.parameters()))
    entries = [one for one in watched(optimizer, Modules(), set()) if id(one.parameter) in ids]
    for content in files({name: value.detach() for name, value in model.named_parameters()}):
        states.note_weights(1, optimizer, entries, [content, optimizer.state_dict()])
    states.save(1, optimizer, entries, "", [], [])
    judged = Memory()
    assert judge([described(states)], judged) == []
    assert [one.is_in_files for one in judged.saved] == [is_in_files]


def test_weights_that_a_load_left_out_are_told_if_files_had_them_alone() -> None:
    saved, values = memory(), tensors()
    _other_weights(values)
    assert alarms_of_load(values, saved) == []
    saved.saved[0].is_in_files = True
    # It went back to the best weights, with its last state.
    assert alarms_of_load(values, saved) == []
    saved.saved[0].is_of_this_process = False
    assert [alarm.kind for alarm in alarms_of_load(values, saved)] == ["weights"]


def _split(needed: int, ranks: int, savers: int) -> list[Post]:
    posts = [Post(rank, 0, LAST) for rank in range(ranks)]
    for post in posts[:savers]:
        numbers = {"names": ["a", "b"], "ranks": needed}
        post.states = [TrainingState(PARTED, 3, "/folder/model.pt", numbers=numbers)]
        post.tensors["states"] = torch.zeros(1, dtype=torch.int64)
    return [unpacked(packed(post)) for post in posts]


@pytest.mark.parametrize(
    ("needed", "ranks", "savers", "kinds"),
    [(2, 2, 1, ["parts"]), (2, 2, 2, []), (2, 4, 2, []), (4, 4, 2, ["parts"]), (2, 1, 1, [])],
)
def test_file_that_gets_a_part_of_split_tensors_is_told(
    needed: int, ranks: int, savers: int, kinds: list[str]
) -> None:
    """In a hybrid split some ranks have all parts together; and perhaps not all ranks have told."""
    alarms = judge(_split(needed, ranks, savers), Memory())
    assert [alarm.kind for alarm in alarms] == kinds


def test_state_that_one_rank_has_gathered_is_compared_with_the_parts_of_others() -> None:
    model, optimizer = stepped()
    states, entries = States(), watched(optimizer, Modules(), set())
    moments = {n: optimizer.state[p] for n, p in model.named_parameters()}
    content = {"model": model.state_dict(), "optimizer": {"state": moments, "param_groups": []}}
    states.note_gathered(1, optimizer, entries, "/saved.pt", content)
    post, judged = described(states), Memory()
    assert [state.path for state in post.states] == ["/saved.pt"]
    assert judge([post], judged) == []
    values = {(n, WEIGHT): p.detach() for n, p in model.named_parameters()}
    values |= {(n, k): moments[n][k] for n in moments for k in ("exp_avg", "exp_avg_sq")}
    assert alarms_of_load(values, judged, 2) == []
    assert judged.compared["checkpoints"] == 6
    values["bias", WEIGHT] = torch.ones(2)
    assert [alarm.parameters for alarm in alarms_of_load(values, judged, 2)] == [["bias"]]


ENGINE = {"by_engine": True, "kept": False}


@pytest.mark.parametrize(
    ("values_of", "numbers", "changed", "kinds"),
    [
        ("later", ENGINE, [], ["path"]),
        ("earlier", ENGINE, [], []),
        ("later", {}, [], []),  # a hook may load other weights
        ("later", ENGINE, ["body", "norm", "head"], []),  # the loop has written them since
        ("before", {**ENGINE, "kept": True}, [], ["weights"]),
        ("before", ENGINE, [], []),  # what a function of the user's has loaded
        ("before", {}, [], []),
    ],
)
def test_engine_that_loads_weights_gets_those_of_the_checkpoint(
    values_of: str, numbers: dict[str, bool], changed: list[str], kinds: list[str]
) -> None:
    """DeepSpeed at ZeRO stage 3 took those of the newest checkpoint, or none (zero3_tag_ignored,
    zero3_module_only)."""
    weights = {key: value for key, value in tensors().items() if key[1] == WEIGHT}
    times = {"earlier": 1.0, "later": 2.0, "before": 3.0}
    saves = {name: {key: n * one for key, one in weights.items()} for name, n in times.items()}
    judged = Memory()
    for name in ("earlier", "later"):
        assert judge(posts(saves[name], path=f"/saved/{name}"), judged) == []
    load = saves[values_of], judged
    alarms = alarms_of_load(*load, path="/saved/earlier", numbers=numbers, changed=changed)
    assert [alarm.kind for alarm in alarms] == kinds


@pytest.mark.parametrize(
    ("drops", "thawed", "kinds"), [(1, 1, ["dropped"]), (1, 0, []), (0, 1, [])]
)
def test_weight_whose_loaded_state_was_dropped_does_not_begin_again(
    drops: int, thawed: int, kinds: list[str]
) -> None:
    """torch drops the state of weights that are frozen at the load (osd_frozen_lost)."""
    model, optimizer = stepped()
    given = {name: dict(optimizer.state[one]) for name, one in model.named_parameters()}
    states = States()
    if drops:
        del optimizer.state[model.bias]
    states.note_set(optimizer, model, given)
    if not thawed:
        model.bias.grad = None
    alarms = [states.begun_again(optimizer), states.begun_again(optimizer)]
    assert [alarm.kind for alarm in alarms if alarm is not None] == kinds


@pytest.mark.parametrize(
    ("copies", "steps", "kinds"), [(False, True, ["late"]), (True, True, []), (False, False, [])]
)
def test_thread_saves_what_it_got(copies: bool, steps: bool, kinds: list[str]) -> None:
    """Lightning copied nothing before steps went on (pl_async_checkpoint)."""
    model = nn.Linear(4, 2)
    trainings: Any = [SimpleNamespace(alarms=[])]
    nothing: Any = None
    watch = Checkpoints(trainings, *[nothing] * 6)
    content = {"state_dict": model.state_dict()}
    watch._hand_over(AsyncSave(None, [content, "/saved.ckpt"], {}))
    if copies:
        content = copy.deepcopy(content)
    if steps:
        with torch.no_grad():
            model.weight += 1
    watch._compare_handed(Save(None, [content, "/saved.ckpt"], {}, Save.places[0]))
    assert [alarm.kind for alarm in trainings[0].alarms] == kinds
