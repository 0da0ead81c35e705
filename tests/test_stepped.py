"""Are steps those of plain torch? On real optimizers that are made to err, and on recorded runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from harness.spec import Outcome, Records
from scenarios.oracles import begun, stepped
from tests.recording import FOLDER, Recording

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
    nothing = stepped.Plain(1.0, 1.0, {n: m.view_as(module.get_parameter(n)) for n, m in
                                       masters.items()})  # fmt: skip
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


# What grading makes of recorded runs whose ranks say something else.


@pytest.fixture
def recorded(tmp_path: Path) -> Callable[[str], Recording]:
    """A copy of a scenario's recorded run, to tamper with."""

    def of(scenario: str) -> Recording:
        return Recording(shutil.copytree(FOLDER / f"{scenario}_cpu", tmp_path / scenario))

    return of


Tamper = Callable[[dict[str, Any]], None]


def less_of_a_gradient(step: dict[str, Any]) -> None:
    next(iter(step["got"].values()))[1] *= 0.9


def a_step_astray(step: dict[str, Any]) -> None:
    step["strayed"][next(iter(step["strayed"]))] = 0.5


def a_stale_weight(step: dict[str, Any]) -> None:
    step["stale"] = [next(iter(step["got"]))]


@pytest.mark.parametrize("tamper", [less_of_a_gradient, a_step_astray, a_stale_weight])
@pytest.mark.parametrize(
    ("scenario", "place"),
    [
        ("bf16_clip", "buggy"), ("bf16_clip", "fixed"), ("tied_resume_norm", "buggy/train"),
        ("tied_resume_norm", "fixed/resume"),
    ],
)  # fmt: skip
def test_one_step_astray_makes_a_trial_inconclusive(
    scenario: str, place: str, tamper: Tamper, recorded: Callable[[str], Recording]
) -> None:
    run = recorded(scenario)
    with run.record(place, "step", 0) as step:
        tamper(step)
    trial = run.trial(place.partition("/")[0])
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert trial.finding is not None
    assert trial.finding.ranks == (0,)


def test_a_rank_that_clipped_is_not_the_documented_symptom(
    recorded: Callable[[str], Recording],
) -> None:
    run = recorded("bf16_clip")
    for rank in (0, 1):
        with run.record("buggy", "step", rank) as step:
            share = step["got"]["3.input_layernorm.weight"]
            share[1] = 1.0 if rank == 0 else share[1]
    assert run.trial("buggy").outcome is Outcome.INCONCLUSIVE, "rank 0 must clip"


def test_a_step_of_buggy_that_is_right_is_not_the_documented_symptom(
    recorded: Callable[[str], Recording],
) -> None:
    run = recorded("clip_max_for_min")
    with run.record("buggy", "step") as step:
        step["ratio"] = step["clipping"] / step["gradient"]
    assert run.trial("buggy").outcome is Outcome.INCONCLUSIVE


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
def test_a_pipelines_loss_must_be_plain_torchs(
    variant: str, recorded: Callable[[str], Recording]
) -> None:
    run = recorded("pipeline_gas_twice")
    for rank in (0, 1):
        with run.record(variant, "step", rank) as step:
            step["loss"] /= 2
    trial = run.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "the loss of step 1 is" in trial.reason


def another_weight(step: dict[str, Any]) -> None:
    step["weights"] += 1


def another_rate(step: dict[str, Any]) -> None:
    step["lr"] *= 2


def another_scale(step: dict[str, Any]) -> None:
    step["loss_scale"] /= 4


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (another_weight, "the weights are not those of rank 0"),
        (another_rate, "the next rate is"),
        (another_scale, "was taken: the scale went"),
    ],
)
def test_fp16_is_held_to_its_rules_on_each_rank(
    variant: str, tamper: Tamper, told: str, recorded: Callable[[str], Recording]
) -> None:
    run = recorded("fp16_overflow")
    with run.records(variant, 1) as records:
        tamper([record for record in records if record["kind"] == "step"][4])
    trial = run.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert told in trial.reason


@pytest.mark.parametrize("variant", ["buggy", "fixed"])
def test_fp16_must_begin_as_plain_torch_does(
    variant: str, recorded: Callable[[str], Recording]
) -> None:
    run = recorded("fp16_overflow")
    with run.record(variant, "begun", 1) as first:
        first["got"] *= 2
    trial = run.trial(variant)
    assert trial.outcome is Outcome.INCONCLUSIVE
    assert "rank 1, step 1: the optimizer got" in trial.reason
