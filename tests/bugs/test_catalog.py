"""The catalogue of scenarios, and its types."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest

from harness.bugs import catalog
from harness.bugs.api.spec import Outcome, Scenario, Variant, Verdict
from harness.bugs.results import RunResult
from harness.system import code
from harness.system.errors import ExitCode, UserError, unknown
from tests.made_up import BUG, scenario_files, trial_result


def test_what_a_scenario_and_its_variants_name_exists() -> None:
    for name in catalog.names():
        scenario, params = catalog.scenario(name), catalog.load(name).Params
        for variant in scenario.variants.values():
            params(**{**asdict(params()), **variant.params})
            assert set(variant.pins) <= set(scenario.pins), name
            assert {defect.upstream for defect in variant.defects} <= set(scenario.pins), name
        subject = next(iter(scenario.pins), "torch")
        assert catalog.folder(name).parent.name == subject.replace("-", "_")


def test_each_folder_is_a_scenario_unless_it_is_private(more_scenarios: Path) -> None:
    scenario_files(more_scenarios, "another", "")
    scenario_files(more_scenarios, "_private", "")
    (more_scenarios / "module.py").write_text("")
    assert "another" in catalog.names()
    assert catalog.file("another") == "scenarios/another_upstream/another/scenario.py"
    assert not {"copies", "regression", "common", "_private", "module"} & set(catalog.names())


BROKEN_CODE = {
    "def run(ctx): pass\n": "it lacks plan, detect",
    "x = 1\nif x\n    pass\n": "broken/scenario.py, line 2: SyntaxError: expected ':'",
    "import nothing_of_that_name\n": "line 1: ModuleNotFoundError: No module named 'nothing_of",
    "\n\nassert 1 == 2, 'a\\nb'\n": "scenario.py, line 3: AssertionError: a b",
    "import sys\nsys.exit('gone')\n": "line 2: SystemExit: gone",
}
"""Modules that cannot be used, and a part of each message."""


@pytest.mark.parametrize(("text", "message"), BROKEN_CODE.items(), ids=list(BROKEN_CODE.values()))
def test_a_broken_module_breaks_only_its_own_scenario_once_it_is_loaded(
    more_scenarios: Path, text: str, message: str
) -> None:
    scenario_files(more_scenarios, "broken", text)
    assert catalog.scenario("broken").subject == "up"
    with pytest.raises(catalog.BrokenScenario) as caught:
        catalog.load("broken")
    assert catalog.sound() == tuple(name for name in catalog.names() if name != "broken")
    assert list(catalog.broken()) == ["broken"]
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("scenarios/another_upstream/broken/scenario.py")
    assert catalog.scenario("bf16_clip").subject == "deepspeed"


BROKEN_DATA = {
    "x = [": "bug.toml: Invalid value (at end of document)",
    BUG.replace("title", "titel"): "no key in the file 'titel': did you mean title?",
    BUG.replace("trigger", "# "): "the file lacks 'trigger'",
    BUG.replace('["https://example.org/1"]', "1"): "'report' in the file must be a list, not 1",
    BUG.replace("fixed", "mended"): "[variants.fixed] is missing",
    BUG.replace("release", "relaese"): "no key in [variants.fixed] 'relaese': did you mean release",
    BUG.replace('"2.0"', "2.0"): "'release' in [variants.fixed] must be text, not 2.0",
    BUG.replace("above", "over"): "no key in [params.lr] 'over': did you mean above? Choices: ",
    BUG.replace(
        "buggy = {}", "buggy = { params = { rl = 1 } }"
    ): "no parameter in [variants.buggy]",
    BUG.replace("buggy = {}", "buggy = { defects = ['x'] }"): "no defect of [variants.buggy] 'x'",
    BUG.replace("buggy = {}", "buggy = { expect = 'x' }"): "Choices: symptom, clean, inconclusive",
    f"harm = 'much'\n{BUG}": "no harm 'much'. Choices: ruins training, loses data",
    f"lanes = ['tpu']\n{BUG}": "Choices: cpu, gpu",
    f"settings = {{ precison = 'bf16' }}\n{BUG}": "no setting 'precison': did you mean precision",
    f"settings.ranks = {{ over = 1 }}\n{BUG}": "no condition of ranks in settings 'over'",
    f"settings.ranks = {{ above = 0, below = 3 }}\n{BUG}": "has several conditions: give one",
}
"""Files that cannot be used, and a part of each message."""


@pytest.mark.parametrize(("text", "message"), BROKEN_DATA.items(), ids=list(BROKEN_DATA.values()))
def test_a_broken_bug_toml_breaks_only_its_own_scenario(
    more_scenarios: Path, text: str, message: str
) -> None:
    scenario_files(more_scenarios, "broken", bug=text)
    ((name, line),) = catalog.broken().items()
    assert name == "broken"
    assert line.startswith("scenarios/another_upstream/broken/bug.toml: ")
    assert message in line
    assert "\n" not in line
    assert catalog.scenario("bf16_clip").subject == "deepspeed"


def test_two_scenarios_of_one_name_are_both_named_and_neither_is_used(more_scenarios: Path) -> None:
    scenario_files(more_scenarios, "bf16_clip", "")
    assert list(catalog.broken()) == ["bf16_clip"]
    assert "deepspeed and another_upstream both" in catalog.broken()["bf16_clip"]


def test_a_variant_of_a_published_release_pins_it_and_says_so() -> None:
    scenario = a_scenario(
        buggy=Variant("", Outcome.SYMPTOM),
        fixed=Variant("", Outcome.CLEAN, release="2.0"),
        other=Variant("third", Outcome.SYMPTOM, release="3.0"),
    )
    assert [
        (scenario.pins_of(name), scenario.about(name), variant.expect)
        for name, variant in scenario.variants.items()
    ] == [
        ({}, "up 1.0 as published", Outcome.SYMPTOM),
        ({"up": "2.0"}, "up 2.0 as published", Outcome.CLEAN),
        ({"up": "3.0"}, "third", Outcome.SYMPTOM),
    ]


def test_the_files_with_the_bug_are_those_named_and_those_that_defects_edit() -> None:
    assert catalog.scenario("bf16_clip").watched == ("deepspeed/runtime/bf16_optimizer.py",)
    assert catalog.scenario("sampler_shards").watched == ("accelerate/data_loader.py",)


def test_a_digest_sees_what_code_does_and_not_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, "ROOT", tmp_path)
    file = tmp_path / "ours.py"

    def digest(text: str) -> str:
        file.write_text(text)
        return code.digest("ours")

    original = digest('"""Says this."""\ndef f():\n    """And that."""\n    return 1\n')
    assert digest('"""Says."""\n# more\ndef f():\n    return 1  # one\n') == original
    assert digest("def f():\n    return 2\n") != original


def test_an_unknown_name_gets_the_choices_and_a_guess_if_one_is_similar() -> None:
    with pytest.raises(UserError) as caught:
        catalog.load("bf16")
    assert str(caught.value).startswith("no scenario 'bf16': did you mean bf16_clip? The nearest")
    assert unknown("lane", "zzz", ["cpu", "gpu"]) == "no lane 'zzz'. Choices: cpu, gpu."
    assert unknown("lane", "zzz", []) == "no lane 'zzz'. Choices: none."


def test_of_many_choices_the_nearest_are_named_and_where_all_are() -> None:
    choices = [f"word{number}" for number in range(100)]
    line = unknown("word", "wor7", choices, shown_by="words")
    assert line.startswith("no word 'wor7': did you mean word7? The nearest choices: word7, ")
    assert line.endswith("; 'words' shows all 100.")
    assert len(line) < 150
    assert unknown("word", "wor7", choices).endswith(" (of 100).")
    number = len(catalog.names())
    for others in ((), (catalog.ALL,)):  # list does not show "all"
        assert catalog.unknown_scenario("bf61_clip", *others).endswith(f" shows all {number}.")
    with pytest.raises(UserError, match="'python -m harness list' shows all") as caught:
        catalog.load("bf16")
    assert len(str(caught.value)) < 300


def test_a_variant_may_have_its_own_ranks_and_a_defect_of_two_counts_once() -> None:
    defect = catalog.scenario("bf16_clip").defects[0]
    with_it, clean = Variant("", Outcome.SYMPTOM, (defect,)), Variant("", Outcome.CLEAN, ranks=1)
    scenario = a_scenario(buggy=with_it, control=with_it, fixed=clean)
    assert [scenario.ranks_of("buggy"), scenario.ranks_of("fixed")] == [4, 1]
    assert scenario.defects == (defect,)


def a_scenario(**variants: Variant) -> Scenario:
    return Scenario("", ("",), "", "", "", {"up": "1.0"}, variants, ranks=4)


@pytest.mark.parametrize(
    ("verdict", "surprise", "exit_code"),
    [
        (Verdict.REPRODUCED, False, 0),
        (Verdict.UNJUDGED, False, 0),
        (Verdict.UNJUDGED, True, 1),
        (Verdict.NOT_REPRODUCED, False, 1),
        (Verdict.INCONCLUSIVE, True, 3),
        (Verdict.UNSUPPORTED, True, 4),
    ],
)
def test_each_verdict_has_its_exit_code(verdict: Verdict, surprise: bool, exit_code: int) -> None:
    outcome = Outcome.SYMPTOM if surprise else Outcome.CLEAN
    result = RunResult("any", verdict, (), (trial_result("fixed", outcome, Outcome.CLEAN, ""),))
    assert result.exit_code == exit_code
    assert result.to_json()["exit_code"] == exit_code


@pytest.mark.parametrize(
    ("codes", "worst"), [([], 0), ([0, 4], 4), ([4, 3], 3), ([3, 1, 0], 1), ([1, 2], 2)]
)
def test_an_unexpected_result_outweighs_one_that_says_nothing(codes: list[int], worst: int) -> None:
    assert ExitCode.worst(codes) == worst
