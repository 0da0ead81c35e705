"""The oracles for steps, on real optimizers that are made to take wrong steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from harness.bugs.api.spec import Records
from scenarios.common import stepped

Step = Callable[[Any, nn.Module], None]
"""How an engine steps its optimizer; its module has gradients."""


def once(optimizer: Any, _: nn.Module) -> None:
    optimizer.step()


def twice(optimizer: Any, _: nn.Module) -> None:
    optimizer.step()
    optimizer.step()


def never(*_: Any) -> None:
    pass


def with_twice_the_gradient(optimizer: Any, module: nn.Module) -> None:
    torch._foreach_mul_([p.grad for p in module.parameters() if p.grad is not None], 2)
    optimizer.step()


def without_one(optimizer: Any, module: nn.Module) -> None:
    bias = module.get_parameter("bias")
    bias.grad = torch.zeros_like(bias)
    optimizer.step()


def at_twice_the_rate(optimizer: Any, module: nn.Module) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 2
    optimizer.step()


WRONG: dict[Step, str] = {
    twice: "of a step away from where torch's own step leads",
    never: "got 0 times plain torch's gradient",
    with_twice_the_gradient: "got 2 times plain torch's gradient",
    without_one: "bias got 0 times plain torch's gradient",
    at_twice_the_rate: "of a step away",
}


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def records(step: Step, clipping: float = 0.0, **changes: Any) -> Records:
    """The record of one ``step``, after the gradient was clipped."""
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
    step_facts = {"loss": float(loss.detach()), "grad_norm": norm, **facts}
    return Records({0: [{"kind": "step", "rank": 0, "step": 1, **step_facts, **changes}]})


@pytest.mark.parametrize("clipping", [0.0, 0.01])
def test_torchs_own_step_is_not_astray(clipping: float) -> None:
    assert stepped.astray(records(once, clipping), clipping) == []


@pytest.mark.parametrize("step", WRONG, ids=lambda step: step.__name__)
def test_a_step_that_is_not_torchs_is_astray(step: Step) -> None:
    faults = stepped.astray(records(step))
    assert any(WRONG[step] in str(one) for one in faults), faults
    finding = stepped.finding(faults)
    assert not finding.documented
    assert finding.step == 1


def test_a_gradient_that_was_not_clipped_is_astray_unless_that_is_documented() -> None:
    whole = records(once, clipping=0.0)
    clipping = whole.of("step")[0]["gradient"] / 4
    faults = stepped.astray(whole, clipping)
    assert {one.name for one in faults} == {"weight", "bias"}
    assert "where 0.25 is right" in str(faults[0])
    (fault,) = stepped.astray(whole, clipping, excused=lambda step, name: name == "bias")
    assert fault.name == "weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"loss": 7.0}, "the loss is 7"),
        ({"grad_norm": 7.0}, "the gradient norm is 7"),
        ({"stale": ["bias"]}, "bias is not its fp32 master rounded"),
        ({"strayed": {"bias": float("nan")}}, "bias is nan of a step away"),
    ],
)
def test_other_differences_from_torch_are_found(change: dict[str, Any], message: str) -> None:
    assert any(message in str(one) for one in stepped.astray(records(once, **change)))


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


def test_another_process_continues_with_the_moments_that_were_saved(tmp_path: Path) -> None:
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


def test_torchs_optimizer_repeats_the_empty_step_that_the_other_was_made_with() -> None:
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
