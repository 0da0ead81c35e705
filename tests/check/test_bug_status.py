"""The status of each bug in an environment, from recorded results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import HARMS
from harness.check.bug_status import BugStatus, Checked, recorded
from harness.check.environment import Environment, of_files
from harness.check.installed import DEPENDENCY, NewestOf, OneOf, described, merged
from harness.python.results import Setting
from tests.check import stacks

pytestmark = pytest.mark.usefixtures("offline")


def environment(
    versions: Mapping[str, str], complete: bool = True, origin: str = ""
) -> Environment:
    packages = {name: described(version, origin) for name, version in versions.items()}
    return Environment(packages, "here", complete, None)


def answer(name: str, installed: Environment, settings: Any = None) -> Checked:
    (bug,) = recorded([name], installed, settings)
    return bug


@pytest.mark.parametrize(
    ("name", "installed", "expected", "why"),
    [
        ("clip_max_for_min", {"deepspeed": "0.13.2"}, "affected", "was tested on"),
        ("clip_max_for_min", {"deepspeed": "0.13.3"}, "not affected", "was tested on"),
        ("clip_max_for_min", {"deepspeed": "0.15.2"}, "not affected", "0.14.5 and deepspeed"),
        ("clip_max_for_min", {}, "does not apply", "deepspeed is not installed"),
        ("clip_max_for_min", {"deepspeed": "99.0"}, "unknown", "the newest tested, is"),
        ("clip_max_for_min", {"deepspeed": "0.13.2+3d347276"}, "unknown", "a build with the label"),
        ("clip_max_for_min", {"deepspeed": "my own"}, "unknown", "is not a version"),
        (
            "trainer_gas_twice",
            {"transformers": "5.24.0.dev0", "accelerate": "1.13.0"},
            "not affected",
            "5.23.0 and transformers 5.24.0 both do not have",
        ),
        ("trainer_gas_twice", {"transformers": "5.3.0"}, "does not apply", "accelerate is not in"),
        (
            "rope_zero_init_v5",
            {"transformers": "4.36.2", "deepspeed": "0.13.3"},
            "does not apply",
            "transformers 4.36.2 cannot have it",
        ),
        ("dtensor_mse_gradient", {"torch": "2.10.0"}, "does not apply", "it refuses these losses"),
        ("lora_plus_embedding", {"peft": "0.12.0"}, "does not apply", "LoRA+ came with 0.13.0"),
        ("hybrid_shard_one", {"torch": "2.0.1"}, "unknown", "2.1.0, the oldest tested, is"),
        ("bf16_clip", {"deepspeed": "0.19.8"}, "not affected", "was tested on"),
        ("device_math", {"torch": "2.13.0"}, "does not apply", "every release of torch has it"),
    ],
)
def test_installed_releases_have_the_answer_of_recorded_runs(
    name: str, installed: dict[str, str], expected: str, why: str
) -> None:
    bug = answer(name, environment(installed))
    assert str(bug.status) == expected, bug.why
    assert why in bug.why


def test_a_file_may_leave_out_what_its_packages_need() -> None:
    bug = answer("trainer_gas_twice", environment({"transformers": "5.3.0"}, complete=False))
    assert bug.status is BugStatus.AFFECTED
    assert answer("trainer_gas_twice", environment({}, complete=False)).why == "no transformers"


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize(
    ("release", "expected"),
    [("1.6.0", "not affected"), ("1.7.0", "affected"), ("1.14.0", "affected"), ("1.15.0", "not ")],
)
def test_a_loop_of_ones_own_has_a_bug_that_newer_releases_of_another_package_avoid(
    release: str, expected: str, complete: bool
) -> None:
    """ema-pytorch's users need accelerate and no transformers: the status was unknown."""
    bug = answer("resume_replays_epoch", environment({"accelerate": release}, complete))
    assert str(bug.status).startswith(expected), bug.why
    both = environment({"accelerate": release, "transformers": "5.12.1"}, complete)
    assert (answer("resume_replays_epoch", both).status is BugStatus.AFFECTED) == (
        release == "1.6.0"
    )


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(1, BugStatus.NOT_TRIGGERED), (4, BugStatus.AFFECTED), (None, BugStatus.POSSIBLY)],
)
def test_settings_narrow_the_answer_but_never_to_not_affected(
    steps: int | None, expected: BugStatus
) -> None:
    stack = environment({"transformers": "5.3.0", "accelerate": "1.13.0"})
    settings = {"trainer": Setting(True), "gradient_accumulation_steps": Setting(steps)}
    assert answer("trainer_gas_twice", stack, settings).status is expected
    fixed = environment({"transformers": "5.5.4", "accelerate": "1.13.0"})
    assert answer("trainer_gas_twice", fixed, settings).status is BugStatus.NOT_AFFECTED


@pytest.mark.parametrize("version", ["2.9.0a0+50eac811a6.nv25.09", "2.9.0.dev20250801+git1234567"])
def test_a_build_of_torch_that_is_no_published_release_is_unknown(version: str) -> None:
    bug = answer("dcp_async_late", environment({"torch": version}))
    assert bug.status is BugStatus.UNKNOWN
    assert bug.why.startswith(f"torch {version}: a ")
    assert bug.why.endswith(f"with the label +{version.partition('+')[2]}")


@pytest.mark.parametrize(
    ("version", "status", "why"),
    [
        ("2.9.0.dev20250801", "not affected", "torch 2.8.0 and torch 2.9.1 both do not have"),
        ("2.9.0rc1+cu128", "not affected", "torch 2.8.0 and torch 2.9.1 both do not have"),
        ("2.6.0.dev20241112+cu124", "affected", "torch 2.5.1 and torch 2.6.0 both have"),
        ("2.7.0.dev20250101", "unknown", "torch 2.6.0 (affected) and torch 2.7.1 (not affected)"),
        ("99.0.0.dev1", "unknown", "the newest tested"),
    ],
)
def test_a_development_version_is_looked_up_between_the_releases_around_it(
    version: str, status: str, why: str
) -> None:
    """22 of 52 unknown answers were about one project with ``transformers==4.40.0.dev0``."""
    bug = answer("dcp_async_late", environment({"torch": version}))
    assert bug.status == status, bug.why
    assert why in bug.why
    assert "dev" not in bug.command
    assert ".dev" not in bug.remedy


def test_a_version_that_fits_in_no_message_is_none() -> None:
    bug = answer("dcp_async_late", environment({"torch": "2.9.0+" + "a" * 3_000}))
    assert bug.status is BugStatus.UNKNOWN
    assert bug.why == f"torch: '2.9.0+{'a' * 30} ...' is not a version"


def test_affected_bugs_come_first_and_of_these_the_most_damaging() -> None:
    bugs = recorded(catalog.sound(), environment({"deepspeed": "0.19.8"}))
    order = [
        (
            list(BugStatus).index(checked.status),
            HARMS.index(catalog.scenario(checked.scenario).harm),
        )
        for checked in bugs
    ]
    assert order == sorted(order)
    assert bugs[0].status is BugStatus.AFFECTED


@pytest.mark.parametrize(
    ("name", "versions", "status"),
    [
        ("tp_activation_partial", ("4.36.2", "5.2.0"), "possibly affected"),
        ("tp_activation_partial", ("5.0.0", "5.2.0"), "possibly affected"),
        ("packed_chunks", ("4.50.0", "4.52.4"), "unknown"),
        ("tp_activation_partial", ("4.36.2", "4.40.0"), "does not apply"),
    ],
)
def test_a_release_that_a_bug_is_not_about_does_not_hide_another(
    name: str, versions: tuple[str, ...], status: str
) -> None:
    several = {"transformers": OneOf(versions, "several")}
    bug = answer(name, Environment(several, "a lock", False))
    assert str(bug.status) == status, bug.why


@pytest.mark.parametrize(
    ("installed", "status"),
    [
        ({"lightning": "2.6.0"}, "affected"),
        ({"lightning": "2.6.0", "pytorch-lightning": "2.6.0"}, "affected"),
        ({"lightning": "2.6.0", "pytorch-lightning": "2.6.1"}, "possibly affected"),
        ({"pytorch-lightning": "2.6.1"}, "not affected"),
    ],
)
def test_lightning_is_pytorch_lightning(installed: dict[str, str], status: str) -> None:
    packages = merged({name: described(version) for name, version in installed.items()})
    bug = answer("pl_sampler_epoch", Environment(packages, "here", False))
    assert str(bug.status) == status, bug.why


def test_what_lightning_needs_gives_way_to_it() -> None:
    needed = NewestOf("2.6.6", DEPENDENCY)
    packages = merged({"lightning": described("2.6.0"), "pytorch-lightning": needed})
    assert packages["pytorch-lightning"].version == "2.6.0"


@pytest.mark.parametrize("stack", stacks.STACKS)
def test_the_recorded_answers_of_six_stacks_are_those_of_runs(stack: str) -> None:
    """Records may not know an answer that a run gives, but they never give another one."""
    names = list(catalog.sound())
    installed = of_files([stacks.requirements(stack)], catalog.upstreams())
    recorded_answers = {each.scenario: str(each.status) for each in recorded(names, installed)}
    run_answers = stacks.ran(stack)
    assert len(run_answers) >= 9
    certain_answers = {
        name: recorded_answers[name] for name in run_answers if recorded_answers[name] != "unknown"
    }
    assert certain_answers.items() <= run_answers.items()
    assert len(certain_answers) >= 0.8 * len(run_answers)
