"""Overrides -> one typed RunConfig."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from harness.__main__ import main
from harness.config import compose, quoted
from harness.errors import UserError
from harness.run_config import LANES, LaunchConfig, RunConfig
from scenarios.deepspeed.bf16_clip.scenario import Params


def composed(*overrides: str) -> RunConfig:
    return compose(["scenario=bf16_clip", *overrides])


def test_without_overrides_everything_is_as_the_files_say(runs: Path) -> None:
    asked = composed()
    assert asked.scenario == "bf16_clip"
    assert asked.params == Params()
    assert asked.variants == ("buggy", "fixed")
    assert (asked.seed, asked.pins, asked.date) == (0, {}, None)
    assert asked.launch == LaunchConfig()
    assert asked.runs == runs
    assert not runs.exists()


def test_an_override_reaches_its_place_in_its_type() -> None:
    asked = composed(
        "scenario.gradient_clipping=1",
        "scenario.steps=3",
        "seed=7",
        "date=2024-02-29",
        "runs=here",
        "launch.timeout=9",
    )
    assert asked.params == Params(gradient_clipping=1.0, steps=3)
    assert isinstance(asked.params.gradient_clipping, float)
    assert (asked.seed, asked.date, asked.launch.timeout) == (7, "2024-02-29", 9.0)
    assert asked.runs == Path("here").absolute()


def test_one_run_does_not_change_the_next() -> None:
    composed("seed=7", "scenario.steps=3")
    assert composed().seed == 0
    assert composed().params == Params()


@pytest.mark.parametrize("lane", LANES)
def test_each_lane_is_a_file_of_configs(lane: str) -> None:
    assert composed(f"launch={lane}").launch.lane == lane


@pytest.mark.parametrize(
    ("asked", "variants"),
    [
        ("all", ("buggy", "fixed", "control", "reference")),
        ("control", ("control",)),
        ("[fixed,buggy]", ("fixed", "buggy")),
        ("[fixed,fixed]", ("fixed",)),
    ],
)
def test_variants_are_one_several_or_all(asked: str, variants: tuple[str, ...]) -> None:
    assert composed(f"variant={asked}").variants == variants


def test_only_the_pins_that_the_user_named_are_handed_on() -> None:
    assert composed("pins.deepspeed=0.15.4").pins == {"deepspeed": "0.15.4"}


@pytest.mark.parametrize("version", ["0.10", "1", "0.15.4", "0.16.0rc1"])
def test_a_version_is_never_taken_for_a_number(version: str) -> None:
    assert composed(f"pins.deepspeed={version}").pins == {"deepspeed": version}


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("pins.up=0.10", "pins.up='0.10'"),
        ("pins.up=0.10,0.20", "pins.up='0.10','0.20'"),
        ("pins.up='0.10'", "pins.up='0.10'"),
        ("+pins.up=1", "+pins.up='1'"),
        ("pins.up=0.15.4", "pins.up=0.15.4"),
        ("pins.up", "pins.up"),
        ("scenario.lr=0.10", "scenario.lr=0.10"),
        ("--multirun", "--multirun"),
    ],
)
def test_only_a_pin_that_looks_like_a_number_is_quoted(typed: str, given: str) -> None:
    assert quoted(typed) == given


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
        asked = compose(["scenario=sampler_shards", f"variant={variant}", pin])
        assert asked.pins == {"accelerate": "0.34.0"}


@pytest.mark.parametrize("day", ["2024-13-45", "2023-02-29", "20240101", "yesterday", "2024-1-1"])
def test_a_day_that_is_none_is_a_mistake(day: str) -> None:
    with pytest.raises(UserError, match="is not a day: write one like 2024-03-15"):
        composed(f"date={day}")


def test_today_is_a_day_to_resolve_for() -> None:
    assert composed(f"date={date.today().isoformat()}").date


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("seed=-1", "seed=-1: choose one from 0 to 2147483647"),
        ("seed=2147483648", "seed=2147483648: choose one from 0 to 2147483647"),
        ("jobs=0", "jobs=0: choose 1 or more, or omit it"),
        ("jobs=-2", "jobs=-2: choose 1 or more"),
        ("date=9999-01-01", "date=9999-01-01 is in the future: choose a day up to today"),
        ("date=", "date= is not a day: write one like 2024-03-15"),
        ("runs=", "runs= is not a folder: set runs=DIR or HARNESS_RUNS=DIR"),
        ("runs=' '", "runs=  is not a folder: set runs=DIR"),
    ],
)
def test_a_value_beyond_its_bounds_is_a_mistake(override: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        composed(override)
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    "command",
    [
        "run seed=-1",
        "run --multirun jobs=0",
        "run scenario=all runs=",
        "check date=9999-01-01",
        "matrix pins.deepspeed=0.15.4 seed=-1",
    ],
)
def test_every_command_refuses_such_a_value_before_anything_starts(
    command: str,
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("UV_OFFLINE", "1")
    words = command.split()
    if "scenario=all" not in words:
        words.append("scenario=bf16_clip")
    assert main(words) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith(f"harness: {command.split()[-1]}")
    assert complaint.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [0, 2147483647])
def test_a_seed_within_the_bounds_is_taken(seed: int) -> None:
    assert composed(f"seed={seed}").seed == seed


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf"])
def test_a_deadline_that_never_comes_is_a_mistake(timeout: str) -> None:
    with pytest.raises(UserError, match=r"launch\.timeout"):
        composed(f"launch.timeout={timeout}")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("variant=[buggy,fxed]", "no variant 'fxed': did you mean fixed? Choices: buggy, fixed,"),
        ("variant=3", "no variant '3'. Choices: buggy, fixed, control, reference, released, all."),
        ("variant=null", "no variant 'None'. Choices: buggy"),
        ("variant=[]", "variant is empty. Choices: buggy"),
        ("launch.lane=tpu", "no lane 'tpu': did you mean gpu? Choices: auto, cpu, gpu."),
        ("scenario.steps=null", "Error merging override scenario.steps=null: field 'scenario."),
        ("scenario.lr=0", "scenario.lr=0.0: must be above 0 and finite"),
    ],
)
def test_a_mistake_is_told_on_one_line(override: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        composed(override)
    assert str(caught.value).startswith(told)
    assert "\n" not in str(caught.value)
