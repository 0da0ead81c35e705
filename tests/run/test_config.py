"""Overrides -> one typed RunConfig."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from harness.bugs import catalog
from harness.run import command_line
from harness.run.command_line import compose, understood
from harness.run.run_config import LANES, LaunchConfig, RunConfig
from harness.system.errors import UserError


def params(**values: float) -> Any:
    return catalog.scenario("bf16_clip").params(**values)


Capture = pytest.CaptureFixture[str]


def composed(*overrides: str) -> RunConfig:
    return compose(["scenario=bf16_clip", *overrides])


def test_without_overrides_everything_has_its_default(runs: Path) -> None:
    config = composed()
    assert (config.scenario, config.params) == ("bf16_clip", params())
    assert config.variants == ("buggy", "fixed")
    assert (config.seed, config.pins, config.date) == (0, {}, None)
    assert (config.launch, config.runs) == (LaunchConfig(), runs)
    assert not runs.exists()


def test_an_override_is_converted_to_its_type_and_does_not_change_the_next_run() -> None:
    day, today = "2024-02-29", date.today().isoformat()
    words = (
        "scenario.gradient_clipping=1 scenario.steps=3 seed=2147483647 launch.timeout=9 runs=here"
    )
    config = composed(*words.split(), f"date={day}")
    assert config.params == params(gradient_clipping=1.0, steps=3)
    assert isinstance(config.params.gradient_clipping, float)
    assert (config.seed, config.date, config.launch.timeout) == (2147483647, day, 9.0)
    assert config.runs == Path("here").absolute()
    assert (composed().seed, composed().params) == (0, params())
    assert composed(f"date={today}").date == today


@pytest.mark.parametrize("lane", LANES)
def test_each_lane_is_a_file_of_configs(lane: str) -> None:
    assert composed(f"lane={lane}").launch.lane == lane


@pytest.mark.parametrize(
    ("words", "variants"),
    [
        ("all", ("buggy", "fixed", "control", "reference")),
        ("[all]", ("buggy", "fixed", "control", "reference")),
        ("control", ("control",)),
        ("[fixed,buggy]", ("fixed", "buggy")),
        ("[fixed,fixed]", ("fixed",)),
    ],
)
def test_variants_are_one_several_or_all(words: str, variants: tuple[str, ...]) -> None:
    assert composed(f"variant={words}").variants == variants


@pytest.mark.parametrize("version", ["0.10", "1", "0.15.4", "0.16.0rc1"])
def test_a_version_is_never_read_as_a_number(version: str) -> None:
    assert composed(f"pins.deepspeed={version}").pins == {"deepspeed": version}


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("pins.up=0.10", "pins.up='0.10'"),
        ("pins.up=0.10,0.20", "pins.up='0.10','0.20'"),
        ("pins.up='0.10'", "pins.up='0.10'"),
        ("+pins.up=1", "+pins.up='1'"),
        ("pins.up=0.15.4", "pins.up=0.15.4"),
        ("pins.up", "pins.up"),
        ("scenario.lr=0.10", "scenario.lr=0.10"),
    ],
)
def test_only_a_pin_that_looks_like_a_number_is_quoted(typed: str, expected: str) -> None:
    assert understood(typed) == expected


def test_the_command_says_how_to_run_it_again() -> None:
    command = composed("pins.deepspeed=0.10", "seed=3").command
    assert command == "python -m harness run scenario=bf16_clip pins.deepspeed='0.10' seed=3"


def test_a_pin_that_every_variant_overrides_is_refused_with_what_to_do() -> None:
    pin = "pins.accelerate=0.34.0"
    with pytest.raises(
        UserError, match=r"pins\.accelerate has no effect: variant 'fixed' has its own"
    ) as caught:
        compose(["scenario=sampler_shards", "variant=fixed", pin])
    assert str(caught.value).endswith("To test another release, use variant=released")
    for variant in ("released", "[buggy,fixed]"):
        config = compose(["scenario=sampler_shards", f"variant={variant}", pin])
        assert config.pins == {"accelerate": "0.34.0"}


NONE = ("2024-13-45", "2023-02-29", "20240101", "yesterday", "2024-1-1", "")
NO_DEADLINES = ("0", "-1", "nan", "inf")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        *((f"date={day}", f"date={day} is not a day: write one like 2024-03-04") for day in NONE),
        *((f"launch.timeout={timeout}", "launch.timeout") for timeout in NO_DEADLINES),
        ("seed=-1", "seed=-1: choose one from 0 to 2147483647"),
        ("seed=2147483648", "seed=2147483648: choose one from 0 to 2147483647"),
        ("jobs=0", "jobs=0: choose 1 or more, or omit it"),
        ("date=9999-01-01", "date=9999-01-01 is in the future: today is"),
        ("runs=", "runs= is not a folder: set runs=DIR or HARNESS_RUNS=DIR"),
        ("runs=' '", "runs=  is not a folder: set runs=DIR"),
        ("variant=[buggy,fxed]", "no variant 'fxed': did you mean fixed? Choices: buggy, fixed,"),
        ("variant=3", "no variant '3'. Choices: buggy, fixed, control, reference, released, all."),
        ("variant=[]", "variant is empty. Choices: buggy"),
        ("launch.lane=tpu", "no lane 'tpu': did you mean gpu? Choices: auto, cpu, gpu."),
        ("scenario.steps=null", "scenario.steps=null: null is no value, choose one"),
        ("seed=null", "seed=null: null is no value, choose one"),
        ("seed=[1]", "seed=[1]: write a whole number"),
        ("jobs=x", "jobs=x: write a whole number"),
        ("launch.timeout=x", "launch.timeout=x: write a number"),
        ("launch=cpu", "no key 'launch': did you mean launch.warm? Choices: launch.lane, "),
        ("strict=maybe", "strict=maybe: write true or false"),
        ("runs=null", "runs=null: null is no value"),
        ("seed=1,", "'seed=1,' cannot be read: write KEY=VALUE, or KEY=\"'VALUE'\""),
        ("variant=[", "'variant=[' cannot be read"),
        ("+variant.a=1", "no key 'variant.a'"),
        ("+nope.a=${nope}", "no key 'nope.a'"),
        ("variant.a.b=1", "no key 'variant.a.b'"),
        ("~pins", "~pins: no key can be removed: write KEY=VALUE"),
    ],
)
def test_a_mistake_is_one_line(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        composed(override)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", ["../x", "'../x'"])
def test_each_run_of_a_sweep_has_the_checkout_of_a_pin(value: str) -> None:
    words = ["scenario=bf16_clip", f"pins.deepspeed={value}", "seed=1,2"]
    runs = [command_line.composed(run)[0] for run in command_line.combinations(words)]
    assert [(run.seed, run.pins.deepspeed) for run in runs] == [(1, "../x"), (2, "../x")]
