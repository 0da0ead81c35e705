"""Are steps those of plain torch? On real optimizers that are made to err, and on recorded runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.spec import Records
from scenarios.common import stepped
from scenarios.deepspeed.fp16_overflow import first_steps as begun

Step = Callable[[Any, nn.Module], None]
"""What an engine does with its optimizer and its module, whose gradients are there."""


def right(optimizer: Any, module: nn.Module) -> None:
    optimizer.step()


def twice(optimizer: Any, module: nn.Module) -> None:
    optimizer.step()
    optimizer.step()


def never(optimizer: Any, module: nn.Module) -> None:
    pass


def with_twice_the_gradient(optimizer: Any, module: nn.Module) -> None:
    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(2)
    optimizer.step()


def without_one(optimizer: Any, module: nn.Module) -> None:
    bias = module.get_parameter("bias")
    assert bias.grad is not None
    bias.grad.zero_()
    optimizer.step()


def at_twice_the_rate(optimizer: Any, module: nn.Module) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 2
    optimizer.step()


WRONG: dict[Step, str] = {
    twice: "of a step away from where torch's own would have led",
    never: "got 0 times the gradient that plain torch has",
    with_twice_the_gradient: "got 2 times the gradient that plain torch has",
    without_one: "bias got 0 times the gradient",
    at_twice_the_rate: "of a step away",
}


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def records(step: Step, clipping: float = 0.0, **changes: Any) -> Records:
    """The record of one step of an engine that does this; the gradient is clipped before it."""
    torch.manual_seed(0)
    module = nn.Linear(3, 2)
    engine = SimpleNamespace(module=module, optimizer=adam(module.parameters()))
    watch = stepped.Watch(engine, adam)
    watch.begin()
    loss = module(torch.ones(4, 3)).square().mean()
    loss.backward()
    gradients = {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    norm = float(nn.utils.clip_grad_norm_(module.parameters(), clipping or 1e9))
    step(engine.optimizer, module)
    facts = watch.facts(stepped.Plain(float(loss.detach()), norm, gradients))
    told = {"loss": float(loss.detach()), "grad_norm": norm, "clipping": clipping, **facts}
    return Records({0: [{"kind": "step", "rank": 0, "step": 1, **told, **changes}]})


@pytest.mark.parametrize("clipping", [0.0, 0.01])
def test_torchs_own_step_is_not_astray(clipping: float) -> None:
    assert stepped.astray(records(right, clipping)) == []


@pytest.mark.parametrize("step", WRONG, ids=lambda step: step.__name__)
def test_a_step_that_is_not_torchs_is_astray(step: Step) -> None:
    found = stepped.astray(records(step))
    assert any(WRONG[step] in str(one) for one in found), found
    finding = stepped.finding(found)
    assert not finding.documented
    assert finding.step == 1


def test_a_gradient_that_was_not_clipped_is_astray_unless_that_is_documented() -> None:
    whole = records(right, clipping=0.0)
    (step,) = whole.of("step")
    step["clipping"] = step["gradient"] / 4
    assert {one.name for one in stepped.astray(whole)} == {"weight", "bias"}
    assert "where 0.25 is right" in str(stepped.astray(whole)[0])
    assert stepped.astray(whole, excused=lambda step, name: name == "bias")[0].name == "weight"
    assert len(stepped.astray(whole, excused=lambda step, name: name == "bias")) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"loss": 7.0}, "the loss is 7"),
        ({"grad_norm": 7.0}, "the gradient norm is 7"),
        ({"stale": ["bias"]}, "bias is not its fp32 master rounded"),
        ({"strayed": {"bias": float("nan")}}, "bias was nan of a step away"),
    ],
)
def test_what_else_is_not_torchs_is_told(change: dict[str, Any], told: str) -> None:
    assert any(told in str(one) for one in stepped.astray(records(right, **change)))


def test_weights_that_are_not_their_masters_rounded_are_stale() -> None:
    module = nn.Linear(2, 1).bfloat16()
    masters = {n: p.detach().float().flatten() for n, p in module.named_parameters()}
    for name, parameter in module.named_parameters():
        vars(parameter)["_hp_mapping"] = SimpleNamespace(hp_fragment=masters[name])
    watch = stepped.Watch(SimpleNamespace(module=module, optimizer=adam(module.parameters())), adam)
    watch.begin()
    nothing = stepped.Plain(
        1.0, 1.0, {n: m.view_as(module.get_parameter(n)) for n, m in masters.items()}
    )
    assert watch.facts(nothing)["stale"] == []
    masters["bias"] += 1
    assert watch.facts(nothing)["stale"] == ["bias"]


def test_moments_go_on_in_another_process_where_they_were_saved(tmp_path: Path) -> None:
    module = nn.Linear(3, 2)
    engine = SimpleNamespace(module=module, optimizer=adam(module.parameters()))
    watch = stepped.Watch(engine, adam)
    for again in (False, True):
        if again:
            watch.save(tmp_path / "torchs.pt")
            watch = stepped.Watch(engine, adam)
            watch.load(tmp_path / "torchs.pt")
        watch.begin()
        module.zero_grad()
        module(torch.ones(4, 3)).square().mean().backward()
        engine.optimizer.step()
        facts = watch.facts(stepped.Plain(1.0, 1.0, {}))
    assert set(facts["strayed"].values()) == {0.0}
    fresh = stepped.Watch(engine, adam)
    fresh.begin()
    engine.optimizer.step()
    assert max(fresh.facts(stepped.Plain(1.0, 1.0, {}))["strayed"].values()) > stepped.TOLERANCE


def test_torchs_optimizer_goes_on_from_the_empty_step_that_the_other_was_made_with() -> None:
    module = nn.Linear(3, 2)
    optimizer = adam(module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    watch = stepped.Watch(SimpleNamespace(module=module, optimizer=optimizer), adam)
    watch.begin()
    module(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()
    assert set(watch.facts(stepped.Plain(1.0, 1.0, {}))["strayed"].values()) == {0.0}


class Squares(nn.Module):
    """Answers with a loss, as the models do that begin."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, batch: Tensor) -> Tensor:
        loss: Tensor = self.linear(batch).square().mean()
        return loss


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone."""
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def begin(step: Step) -> Records:
    """The records of the first steps of an engine that does this; clipped to 0.01."""
    torch.manual_seed(0)
    module = Squares()
    engine = SimpleNamespace(
        module=module, optimizer=adam(module.parameters()), device=torch.device("cpu")
    )
    watch, found = begun.Watch(engine, adam, 0.01), []
    for number in range(1, begun.STEPS + 1):
        batch = torch.randn(4, 3)
        watch.begin(batch)
        module.zero_grad()
        loss = module(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.01)
        step(engine.optimizer, module.linear)
        facts = watch.facts(float(loss.detach()))
        found.append({"kind": "begun", "rank": 0, "step": number, **facts})
    return Records({0: found})


@pytest.mark.usefixtures("alone")
def test_a_training_that_begins_as_torchs_is_true() -> None:
    assert list(begun.untrue(begin(right))) == []


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("step", "told"),
    [
        (twice, "of a step away from plain torch's"),
        (never, "the optimizer got a gradient of norm 0,"),
        (with_twice_the_gradient, "the optimizer got a gradient of norm 0.02, where 0.01 is right"),
        (without_one, "the optimizer got a gradient of norm"),
    ],
)
def test_a_training_that_begins_otherwise_is_not_true(step: Step, told: str) -> None:
    (found,) = begun.untrue(begin(step))
    assert told in found


@pytest.mark.usefixtures("alone")
def test_a_gradient_that_overflows_for_plain_torch_too_says_nothing() -> None:
    began = begin(never)
    began.of("begun")[0]["gradient"] = "inf"
    assert list(begun.untrue(began)) == []
