"""The instrument: events of a training, for those who subscribe to them."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.optim import optimizer as hooks
from torch.utils.data import DataLoader, dataloader

from harness.rank import events
from harness.rank.events import Instrument, Step, compiler_question
from harness.system.files import ROOT

FOLDER = ROOT / "harness" / "rank" / "events"


@pytest.fixture
def instrument() -> Iterator[Instrument]:
    """An instrument whose subscriptions end with the test."""
    instrument = Instrument()
    subscriptions, on = [], instrument.on

    def subscribe(*arguments: Any, **named: Any) -> Any:
        subscriptions.append(on(*arguments, **named))
        return subscriptions[-1]

    instrument.on = subscribe  # type: ignore[method-assign]
    yield instrument
    for subscription in subscriptions:
        if subscription in instrument._subscriptions[subscription.kind]:
            subscription.end()


def train(steps: int = 1, closure: bool = False) -> Any:
    model = nn.Linear(2, 1)
    optimizer: Any = torch.optim.SGD(model.parameters(), 0.1, fused=True)

    def evaluate() -> Any:
        loss = model(torch.ones(1, 2)).sum()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss

    for _ in range(steps):
        if closure:
            optimizer.step(evaluate)
        else:
            evaluate()
            optimizer.step()
        optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("closure", [False, True])
def test_a_step_is_a_sequence_of_events(instrument: Instrument, closure: bool) -> None:
    order: list[str] = []

    def note(word: str) -> Callable[[events.Event], None]:
        return lambda event: order.append(f"{word} {type(event).__name__}")

    for kind in (events.ModuleCall, events.Backward, events.Clip, events.Gradients, Step):
        instrument.on(kind, before=note("before"), after=note("after"))
    train(closure=closure)
    evaluation = [
        f"{word} {name}"
        for name in ("ModuleCall", "Backward", "Clip")
        for word in ("before", "after")
    ]
    if closure:
        assert order == ["before Step", *evaluation, "before Gradients", "after Step"]
    else:
        assert order == [*evaluation, "before Step", "before Gradients", "after Step"]


def test_calls_that_nobody_listens_to_make_no_event(
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A monitor looks at few steps: in the others, no object is made and no parameter is listed."""
    events_made: set[type] = set()

    def noting(handle: Any) -> Any:
        def noted(event: events.Event, *arguments: Any) -> Any:
            events_made.add(type(event))
            return handle(event, *arguments)

        return noted

    for name in ("run", "before", "after"):
        monkeypatch.setattr(instrument, name, noting(getattr(instrument, name)))
    listening = False
    kinds = {events.Backward, events.Clip, events.Gradients, Step, events.ZeroGrad}
    for kind in kinds:
        instrument.on(kind, before=lambda _: None, when=lambda: listening)
    train()
    assert events_made == set()
    listening = True
    train()
    assert events_made == kinds


def test_only_what_somebody_subscribes_to_is_replaced_and_it_is_put_back(
    instrument: Instrument,
) -> None:
    def replaceable() -> list[Any]:
        iterators: Any = dataloader._BaseDataLoaderIter
        return [
            torch.Tensor.backward,
            nn.Module.__call__,
            nn.utils.clip_grad_norm_,
            torch.optim.Optimizer.__init__,
            torch.amp.GradScaler.step,
            DataLoader.__iter__,
            iterators.__next__,
            torch.save,
            *hooks._global_optimizer_pre_hooks.values(),
        ]

    before = replaceable()
    first, second = (instrument.on(events.Backward, before=lambda _: None) for _ in range(2))
    changed = [a is not b for a, b in zip(before, replaceable(), strict=True)]
    assert changed == [True] + [False] * (len(before) - 1)
    first.end()
    assert replaceable() != before
    second.end()
    others = [
        instrument.on(kind, before=lambda _: None)
        for kind in (events.ModuleCall, events.Clip, Step, events.Batch, events.Save)
    ]
    instrument.refresh()  # what is replaced already is not replaced again
    assert replaceable() != before
    for subscription in others:
        subscription.end()
    assert replaceable() == before


def test_a_subscriber_chooses_its_steps_and_its_optimizer(instrument: Instrument) -> None:
    steps, chosen_steps = [0], []

    def note(event: Step) -> None:
        steps[0] += 1

    def take(event: Step) -> None:
        chosen_steps.append((steps[0], event.owner))

    instrument.on(Step, before=note)
    chosen = instrument.on(Step, after=take, when=lambda: steps[0] in (2, 4))
    optimizer = train(5)
    assert chosen_steps == [(2, optimizer), (4, optimizer)]
    chosen.end()
    train(4)
    assert len(chosen_steps) == 2
    instrument.on(Step, after=take, of=optimizer)
    train()
    assert len(chosen_steps) == 2
    optimizer.step()
    assert len(chosen_steps) == 3


def test_a_handler_around_a_call_ends_when_it_raises_and_may_replace_its_value(
    instrument: Instrument,
) -> None:
    depth, deepest = [0], [0]

    def around(event: events.ModuleCall, call: Callable[[], Any]) -> Any:
        depth[0] += 1
        deepest[0] = max(deepest[0], depth[0])
        try:
            return 2 * call()
        finally:
            depth[0] -= 1

    instrument.on(events.ModuleCall, around=around)
    assert nn.Identity()(torch.ones(1)).tolist() == [2.0]
    assert nn.Sequential(nn.Identity())(torch.ones(1)).tolist() == [4.0]
    with pytest.raises(RuntimeError):
        nn.Linear(2, 1)(torch.ones(1, 3))
    assert (depth, deepest) == ([0], [2])


def test_a_loader_s_batches_and_its_end_are_events(instrument: Instrument) -> None:
    batches = []
    instrument.on(events.Batch, after=lambda event: batches.append((event.value, event.ended)))
    list(DataLoader([1, 2], collate_fn=sum))  # type: ignore[arg-type]
    assert batches == [(1, False), (2, False), (None, True)]


def test_a_fused_step_that_a_scaler_skips_has_no_gradients(instrument: Instrument) -> None:
    skips = []
    instrument.on(Step, after=lambda event: skips.append(event.skips))
    instrument.on(events.Gradients, before=lambda event: skips.append("ready"))
    optimizer = train()
    optimizer.found_inf = torch.ones(1)
    optimizer.step()
    assert skips == ["ready", False, True]


def test_the_step_of_an_engine_is_that_of_its_own_method(instrument: Instrument) -> None:
    class Engine:
        def _take_model_step(self, rate: float) -> float:
            return rate

        def step(self) -> float:
            return self._take_model_step(2.0)

    engine, other = Engine(), Engine()
    values = []
    subscription = instrument.on(
        events.TrainerStep, of=engine, after=lambda event: values.append(event.value)
    )
    assert engine.step() + other.step() == 4.0
    assert values == [2.0]
    subscription.end()
    assert vars(engine) == {}


def test_what_is_imported_later_is_replaced_by_a_refresh(
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Accelerator:
        def load_state(self) -> None: ...

    loads = []
    instrument.on(events.Load, after=lambda event: loads.append(event.owner))
    module = SimpleNamespace(Accelerator=Accelerator)
    monkeypatch.setitem(sys.modules, "accelerate.accelerator", module)  # type: ignore[arg-type]
    Accelerator().load_state()
    assert not loads
    instrument.refresh()
    instrument.refresh()
    (accelerator := Accelerator()).load_state()
    assert loads == [accelerator]


def test_a_function_is_replaced_also_where_a_module_has_it_under_another_name(
    instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers imports safetensors' save_file as safe_save_file."""
    module = ModuleType("importing")
    module.write = original = torch.save  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "importing", module)
    saved = []
    subscription = instrument.on(events.Save, before=lambda event: saved.append(event.state))
    module.write({"a": 1}, BytesIO())
    assert saved == [{"a": 1}]
    subscription.end()
    assert module.write is original


COPIED = """
import sys, torch
from copied import Step, instrument
steps = []
instrument.on(Step, after=lambda event: steps.append(event.owner))
parameter = torch.ones(1, requires_grad=True)
torch.optim.SGD([parameter], 0.1).step()
assert len(steps) == 1
assert not any(name.partition(".")[0] == "harness" for name in sys.modules)
"""


def test_its_files_work_alone_and_in_older_pythons(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "copied")
    subprocess.run([sys.executable, "-c", COPIED], cwd=tmp_path, check=True)
    for file in FOLDER.glob("*.py"):
        ast.parse(file.read_text(), feature_version=(3, 9))


def test_hooks_do_nothing_where_tensors_have_no_values() -> None:
    """torch 2.11 compiles a function of torch that we wrap by running it with such tensors."""
    is_compiling = compiler_question()

    assert not is_compiling()
    with FakeTensorMode():
        assert is_compiling()
    assert not is_compiling()
