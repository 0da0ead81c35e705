"""Which bugs of the catalogue guard names at the first step, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from harness.bugs import catalog
from harness.bugs.lookup import lookup
from harness.bugs.results import Status
from harness.rank.guard import facts
from harness.rank.guard.posting.posts import Alarm
from harness.rank.guard.reporting.report import FaultReport
from harness.rank.guard.settings import Settings
from harness.rank.training.live_objects import MISSING, attribute
from harness.training.guard import known
from tests.guard.trainer import Trainer

MODULE = "package_with_bugs"


class Loss(torch.nn.Module):
    """A loss of a package."""

    def __init__(self, gathers: bool) -> None:
        super().__init__()
        self.gathers, self.inner = gathers, torch.nn.Linear(2, 3)
        self.count, self.size = 2, 4
        self.defaults = {"betas": (0.9, 0.99), "fused": None}

    @property
    def trap(self) -> Any:
        raise AssertionError("a property of a stranger was called")


@pytest.fixture(autouse=True)
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType(MODULE)
    module.Loss, module.__version__ = Loss, "1.2.0+cpu"
    monkeypatch.setitem(sys.modules, MODULE, module)


def bug(**changes: Any) -> dict[str, Any]:
    usual = {
        "name": "my_bug",
        "title": "All is wrong",
        "settings": {"ranks": {"above": 1}, "precision": "bf16"},
        "seen": {f"{MODULE}.Loss": {"gathers": True}},
        "code": "the loss gathers",
        "certain": True,
        "affected": {MODULE: ["1.1.0", "1.2.0"]},
        "remedy": "use package-with-bugs 1.3.0 or later",
        "signature": ["gradients"],
    }
    return {**usual, **changes}


PACKAGES = {MODULE: "package-with-bugs"}
SETTINGS = {"ranks": 2, "precision": "bf16", "trainer": False}


def answer(entry: dict[str, Any], **settings: Any) -> str:
    versions = facts.releases(PACKAGES)
    bugs = facts.known_bugs([entry], versions, {**SETTINGS, **settings})
    return ("certain" if bugs[0]["certain"] else "possible") if bugs else "excluded"


def test_bug_that_is_not_set_off_is_never_certain() -> None:
    loss = Loss(gathers=False)
    assert answer(bug()) == "excluded"
    loss.gathers = True
    assert answer(bug()) == "certain"
    assert answer(bug(), ranks=1) == "excluded"
    assert answer(bug(), precision="fp32") == "excluded"
    assert answer(bug(affected={MODULE: ["1.1.0"]})) == "excluded"
    assert answer(bug(affected={"absent_package": ["1"]}, packages={})) == "excluded"
    assert answer(bug(certain=False)) == "possible"
    del loss
    assert answer(bug()) == "excluded"  # no object of the class


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({}, "certain"),
        ({"trap": True}, "possible"),
        ({"inner.absent": True}, "possible"),
        ({"gathers.deeper": True}, "possible"),
        ({"inner.out_features": {"above": 2}}, "certain"),
        ({"inner.out_features": {"above": 3}}, "excluded"),
        ({"count": {"differs": "size"}}, "certain"),
        ({"count": {"differs": "count"}}, "excluded"),
        ({"count": {"differs": "absent"}}, "possible"),
        ({"training": 1}, "excluded"),  # a flag is no number
        ({"absent": True}, "possible"),
        ({"absent": {"has": True}}, "excluded"),
        ({"gathers": {"above": 0}}, "excluded"),
        ({"defaults.betas.1": {"above": 0.95}}, "certain"),
        ({"defaults.betas.2": {"above": 0.95}}, "possible"),
        ({"defaults.betas.first": {"above": 0.95}}, "possible"),
        ({"defaults.fused": {"exists": True}}, "certain"),
        ({"defaults.momentum": {"exists": True}}, "excluded"),
        ({"inner.weight.requires_grad": True}, "certain"),
        ({"inner.bias.requires_grad": True}, "excluded"),  # frozen
        ({"inner.weight.shape": True}, "possible"),
    ],
)
def test_attributes_of_an_object(attributes: dict[str, Any], expected: str) -> None:
    loss = Loss(gathers=True)
    loss.inner.bias.requires_grad_(False)
    assert answer(bug(seen={f"{MODULE}.Loss": attributes})) == expected
    del loss


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"settings": {"zero_stage": 2}}, "possible"),  # nobody sees it
        ({"seen": {f"{MODULE}.MovedLoss": {}}}, "possible"),
        # Nobody has imported the module, so there is no object.
        ({"seen": {"absent_package.Loss": {}}}, "excluded"),
        ({"seen": {f"{MODULE}.unimported.Loss": {}}}, "excluded"),
        # One of several classes is enough.
        ({"seen": {f"absent_package.Loss or {MODULE}.Loss": {"gathers": True}}}, "certain"),
        ({"seen": {f"absent_package.Loss or {MODULE}.Loss": {"gathers": False}}}, "excluded"),
    ],
)
def test_objects_of_classes(changes: dict[str, Any], expected: str) -> None:
    loss = Loss(gathers=True)
    assert answer(bug(**changes)) == expected
    del loss


def test_code_of_a_module_may_run_the_step() -> None:
    entry = bug(settings={}, seen={MODULE: {}})
    versions = facts.releases(PACKAGES)
    assert facts.known_bugs([entry], versions, SETTINGS, {MODULE})[0]["certain"]
    assert facts.known_bugs([entry], versions, SETTINGS, {"the_script"}) == []


class Stranger(torch.Tensor):
    """A tensor whose code says something at each access."""

    @classmethod
    def __torch_function__(cls, func: Any, *_: Any, **__: Any) -> Any:
        raise AssertionError(f"{func} of a stranger was called")


def test_no_code_of_an_object_runs() -> None:
    stranger = torch.zeros(2).as_subclass(Stranger)
    assert attribute({"weight": stranger}, "weight.requires_grad") is False
    assert attribute(Loss(True), "trap") is MISSING
    assert attribute(Loss(True), "forward") is MISSING


def test_bug_of_a_resumed_run_is_certain_after_a_load_alone() -> None:
    entry = bug(settings={"resumed": True}, seen={}, code="")
    assert answer(entry) == "possible"  # a load may still come
    versions = facts.releases(PACKAGES)
    (entry,) = facts.known_bugs([entry], versions, {**SETTINGS, "resumed": True})
    assert entry["because"] == "package_with_bugs is 1.2.0 and a checkpoint was loaded"


@pytest.mark.parametrize(
    ("symptom", "signs"),
    [
        ({"times": "k", "ratio": 3.0}, {"accumulation/weight/k", "gradients/longer/k"}),
        ({"layout": "ranks"}, {"gradients/mean", "gradients/none"}),
        ({"relation": "samples"}, {"samples/again", "samples/shared", "accumulation/early"}),
        ({"relation": "samples", "layout": "resume"}, {"samples/resume"}),
        ({"relation": "stale gradients"}, {"gradients/stale"}),
        ({"relation": "buffers", "layout": "model"}, set()),
        ({"note": True}, set()),
    ],
)
def test_alarms_that_go_with_what_a_probe_has_shown(
    symptom: dict[str, Any], signs: set[str], tmp_path: Path
) -> None:
    usual = {"relation": "gradient", "layout": "both", "ratio": 0.9, "times": "", "note": False}
    file = tmp_path / "probe.json"
    file.write_text(json.dumps({"recorded": {"buggy": {"shown": [{**usual, **symptom}]}}}))
    assert set(known._signature(file)) == signs


def test_note_of_a_probe_is_a_sign_unless_the_fixed_release_has_it(tmp_path: Path) -> None:
    file = tmp_path / "probe.json"
    note = {"relation": f"{known.NOTE} of its own logits", "note": True}
    file.write_text(json.dumps({"recorded": {"buggy": {"shown": [note]}}}))
    assert known._signature(file) == ["accumulation/tokens"]
    shown = {name: {"shown": [note]} for name in ("buggy", "fixed")}
    file.write_text(json.dumps({"recorded": shown}))
    assert known._signature(file) == []


@pytest.fixture(scope="module")
def bugs() -> list[dict[str, Any]]:
    return list(known.bugs())


def of(bugs: list[dict[str, Any]], name: str) -> dict[str, Any]:
    (bug,) = (bug for bug in bugs if bug["name"] == name)
    return bug


@pytest.mark.slow
def test_a_bug_has_its_releases_settings_remedy_and_signature(bugs: list[dict[str, Any]]) -> None:
    bug = of(bugs, "trainer_gas_twice")
    assert bug["certain"]
    assert bug["settings"] == {"gradient_accumulation_steps": {"above": 1}, "trainer": True}
    assert bug["remedy"] == "use transformers 5.5.4 or later"
    assert set(bug["signature"]) == {"accumulation/weight/1/k", "gradients/longer/1/k"}
    releases = bug["affected"]["transformers"]
    assert {"5.2.0", "5.5.3"} <= set(releases)
    assert "5.5.4" not in releases
    for release in releases:
        assert lookup(bug["name"], {"transformers": release}).status is Status.AFFECTED


@pytest.mark.slow
def test_a_bug_that_needs_what_no_rank_sees_is_not_certain(bugs: list[dict[str, Any]]) -> None:
    for bug in bugs:
        scenario = catalog.scenario(bug["name"])
        decides = scenario.seen and not scenario.seen_in_part
        visible = set(known.VISIBLE) | ({"code"} if decides else set())
        assert set(bug["settings"]) - {"resumed"} == set(scenario.settings) & set(known.VISIBLE)
        # who does not resume does not meet it
        assert ("resumed" in bug["settings"]) == (len(scenario.launches) > 1)
        assert not bug["certain"] or set(scenario.settings) <= visible
    certain = {bug["name"] for bug in bugs if bug["certain"]}
    assert "zero2_micro_batches_lost" in certain
    assert {"bf16_stage0_resume", "zero_bubble_ddp", "static_graph_manual"} <= certain
    # A resume between two epochs, and a Compose that draws nothing, are right.
    # A training of one epoch has no second order, and a whole stream no other part.
    undecided = {"set_epoch_persistent", "choose_changes", "gpt2_counts_first_label"}
    assert not {"resume_replays_epoch", "albumentations_workers", *undecided} & certain
    assert of(bugs, "dpo_gas")["seen"]  # TRL's other trainers do not have it
    assert "ignite" in of(bugs, "ignite_gas_loss")["affected"]  # packages by their modules


@pytest.mark.parametrize("name", ["tp_norm_partial", "tp_activation_partial"])
def test_bug_of_a_gradient_needs_that_it_is_trained(bugs: list[dict[str, Any]], name: str) -> None:
    """The adapters of a model are trained, and its norms are frozen."""
    rules = [rule for kind in of(bugs, name)["seen"].values() for rule in kind.items()]
    (path,) = (path for path, rule in rules if path.endswith(".requires_grad"))
    assert (path, True) in rules


def test_bugs_of_a_model_are_named_in_runs_of_such_a_model_alone(
    bugs: list[dict[str, Any]],
) -> None:
    """The Trainer of a GPT-2 was told to perhaps have the bug of mixtures of experts."""
    gpt2, experts = of(bugs, "gpt2_counts_first_label"), of(bugs, "moe_aux_world")
    assert "accumulation/tokens" in {*gpt2["signature"]} & {*experts["signature"]}
    (kind,) = gpt2["seen"]
    assert "transformers.models.gpt2.modeling_gpt2.GPT2LMHeadModel" in kind
    (rules,) = experts["seen"].values()
    assert rules == {"config.output_router_logits": {"has": True}}


def test_signs_of_bugs_are_those_of_alarms() -> None:
    """No check and no kind is misspelled."""
    folder = Path(facts.__file__).parent
    text = "".join(file.read_text() for file in folder.rglob("*.py"))
    for sign in " ".join([*known.SIGNS.values(), "accumulation/tokens", known.TIMES]).split():
        check, kind = sign.split("/")
        assert f'Alarm("{check}", "{kind}", ' in text, sign


@pytest.mark.parametrize(
    ("sign", "expected"),
    [
        ("accumulation/weight/k", ["bug"]),
        ("accumulation/weight/1/k", []),  # another factor
        ("accumulation/tokens", []),  # another kind
        ("accumulation", []),
    ],
)
def test_alarm_names_bugs_with_its_kind_and_factor(sign: str, expected: list[str]) -> None:
    report = FaultReport(Settings(quiet=True))
    report.bugs = [bug(name="bug", signature=[sign])]
    alarm = Alarm("accumulation", "weight", "counted 3 times", [0, 1], 3.0, factors=["k"])
    (line,) = report.tell(1, 0, [alarm])
    assert report.faults[0, "accumulation", "weight"].bugs == expected
    assert ("perhaps the bug bug" in line) == bool(expected)


@pytest.mark.launch
@pytest.mark.slow
def test_first_step_names_the_bugs_that_it_sets_off(under_guard: Trainer, tmp_path: Path) -> None:
    torch_bug = {"affected": {"torch": [torch.__version__.split("+")[0]]}}
    sgd = {"torch.optim.optimizer.Optimizer": {"_zero_grad_profile_name": "no"}}
    bugs = [
        bug(name="set_off", settings={"ranks": {"above": 1}}, seen={}, code="", **torch_bug),
        bug(name="more_ranks", settings={"ranks": {"above": 2}}, seen={}, **torch_bug),
        bug(name="unseen", settings={"zero_stage": 2}, seen={}, **torch_bug),
        bug(name="other_object", settings={}, seen=sgd, **torch_bug),
    ]
    file = tmp_path / "known.json"
    file.write_text(json.dumps({"packages": {"torch": "torch"}, "bugs": bugs}))

    run = under_guard("ddp", steps=2, known=str(file))

    (line,) = [line for line in run.logs[0].splitlines() if "KNOWN BUG" in line]
    release = torch.__version__.split("+")[0]
    assert line == (
        f"guard: KNOWN BUG set_off: All is wrong, because torch is {release} and ranks is 2; use "
        "package-with-bugs 1.3.0 or later"
    )
    assert "KNOWN BUG" not in run.logs[1]
    certain_by_name = {one["name"]: one["certain"] for one in run.summary["known_bugs"]}
    assert certain_by_name == {"set_off": True, "unseen": False}
