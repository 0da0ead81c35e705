"""The list of scenarios: its conditions, and its JSON."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.bugs import catalog, result_file
from harness.system.terminal import Terminal
from tests.made_up import scenario_files
from tests.sandbox import refused
from tests.schemas import complaints

Capture = pytest.CaptureFixture[str]


def listed(capsys: Capture, *words: str) -> dict[str, dict[str, Any]]:
    """The scenarios that ``list`` prints with these words, by name."""
    assert main(["list", "--json", *words]) == 0
    return {each["name"]: each for each in json.loads(capsys.readouterr().out)}


@pytest.mark.parametrize(
    ("words", "met"),
    [
        (["--upstream", "transformers"], lambda bug: bug["upstream"] == "transformers"),
        (["--alive"], lambda bug: bug["alive"] is not None),
        (["--harm", "wrong resume"], lambda bug: bug["harm"] == "wrong resume"),
        (["--visibility", "silent"], lambda bug: bug["visibility"] == "silent"),
        (
            ["--upstream", "deepspeed", "--alive", "--visibility", "silent"],
            lambda bug: (
                bug["upstream"] == "deepspeed" and bug["alive"] and bug["visibility"] == "silent"
            ),
        ),
    ],
)
def test_the_list_has_the_scenarios_that_meet_all_conditions(
    words: list[str], met: Callable[[Any], bool], capsys: Capture
) -> None:
    everything, bugs = listed(capsys), listed(capsys, *words)
    assert 0 < len(bugs) < len(everything)
    assert bugs == {name: bug for name, bug in everything.items() if met(bug)}
    assert main(["list", *words]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(bugs) + 1


def test_no_text_has_the_backticks_of_a_docstring(capsys: Capture) -> None:
    assert main(["list"]) == 0
    assert "``" not in capsys.readouterr().out
    assert all("``" not in catalog.story(name) for name in catalog.sound())


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--upstream", "transformer"], ["mean transformers?", "choices: transformers, sentence"]),
        (["--harm", "ruins"], ["no harm 'ruins'", "ruins training, loses data"]),
        (["--visibility", "loud"], ["silent, visible in the loss, raises"]),
    ],
)
def test_a_wrong_word_is_a_mistake_that_names_the_choices(
    words: list[str], parts: list[str], capsys: Capture
) -> None:
    err = refused(capsys, ["list", *words])
    assert [part for part in parts if part not in err] == []


def test_the_json_says_how_bad_a_bug_is_and_who_knows_it(capsys: Capture) -> None:
    bugs = listed(capsys)
    assert complaints("list.json", list(bugs.values())) == []
    bug = bugs["rope_zero_init_v5"]
    assert (bug["harm"], bug["visibility"]) == ("ruins training", "silent")
    assert bug["alive"] == {
        "release": result_file.tested_releases("transformers")[-1],
        "variant": "released",
    }
    assert (bug["known_upstream"], bug["known_in_part"]) == (False, "")
    assert "ZeRO" in bugs["fp16_overflow_stage0"]["known_in_part"]
    assert bug["settings"] == {
        "precision": "bf16 or fp16",
        "zero_stage": "3",
        "code": "the script, or transformers 5.15.0 to 5.22.2, enters zero.Init",
    }
    assert bugs["pipeline_gas_twice"]["settings"]["pipeline_parallel"] == "above 1"
    assert bugs["clip_max_for_min"]["alive"] is None
    assert bugs["sampler_shards"]["alive"] == {"release": "1.15.0", "variant": "alive"}
    assert bugs["device_math"]["upstream"] == "torch"


def test_a_broken_scenario_meets_no_condition(more_scenarios: Path, capsys: Capture) -> None:
    scenario_files(more_scenarios, "broken", bug="x = [")
    assert "broken" in listed(capsys)["broken"]
    assert "broken" not in listed(capsys, "--visibility", "silent")


def test_no_name_is_broken_on_a_narrow_terminal(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = io.StringIO()
    narrow = Terminal(file=output, width=60, force_terminal=True, no_color=True, soft_wrap=True)
    monkeypatch.setattr("harness.cli.list.terminal", lambda: narrow)
    assert main(["list", "--upstream", "trl"]) == 0
    monkeypatch.undo()
    lines = re.sub(r"\x1b\[[\d;]*m", "", output.getvalue()).splitlines()
    names = [line.partition("  ")[0] for line in lines if not line.startswith(" ")]
    assert names == [name for name, bug in listed(capsys).items() if bug["upstream"] == "trl"]
    assert max(map(len, lines)) <= 60
