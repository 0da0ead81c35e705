"""A hunt: what it groups, what it knows, and how it finds the first release with a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.run.server_pool import Pool
from harness.training.probe import hunt, loops
from harness.training.probe.hunt import Breakage, Hunted, Hunter, Probed, first_with, related
from harness.training.probe.prober import Loop
from harness.training.probe.signatures import ProbeResult, Sign
from harness.training.probe.stacks import STACKS, Choice, HuntedStack, flags
from tests.schemas import complaints

SUMMED = Sign("ranks", "gradient", 2.0, "ranks", 1)
TIMES_K = Sign("accumulation", "gradient", 3.0, "k", 1)
MISSING = Sign("resume", "samples", step=3)
ORDER = Sign("ranks", "draws another order", note=True)


def recorded(*shown: Sign, no_answer: str = "") -> ProbeResult:
    return ProbeResult({"package": "1.0"}, "2.13.0", "2026-11-22", {}, shown, no_answer)


def probed(*shown: Sign) -> Probed:
    return Probed((0,), Loop("ddp.py"), recorded(*shown))


def test_loops_that_break_a_relation_alike_are_one_finding() -> None:
    both, alone, missing = probed(SUMMED, TIMES_K), probed(TIMES_K), probed(MISSING)
    order = probed(ORDER)
    every = [both, order, missing, alone]
    assert related(every, "gradient") == [[both, alone]]
    assert related(every, "samples") == [[missing]]
    assert not order.news


@pytest.mark.parametrize("index", range(12))
def test_the_first_release_with_a_fault_is_found_in_few_steps(index: int) -> None:
    versions, calls = [f"1.{n}" for n in range(12)], list[str]()

    def has(version: str) -> bool:
        calls.append(version)
        return int(version[2:]) >= index

    release, before = first_with(versions, has)
    assert release == f"1.{index}"
    assert before == (f"1.{index - 1}" if index else None)
    assert len(calls) <= 8


def test_a_release_without_an_answer_ends_the_search() -> None:
    answers = {"1.0": False, "1.1": None, "1.2": True}
    assert first_with([*answers, "1.3"], answers.__getitem__) == ("1.2", None)


class Replayed(Hunter):
    """A hunter whose results depend on the loop's arguments."""

    def result(
        self, loop: Loop, releases: dict[str, str], day: str, passing: bool = False
    ) -> ProbeResult:
        if "--bf16" in loop.arguments:
            return recorded(no_answer="bf16 is missing")
        return recorded(*([SUMMED] if "--clip" in loop.arguments else []))


class NeedsTwo(Hunter):
    """Two of four settings together break the loop."""

    def result(
        self, loop: Loop, releases: dict[str, str], day: str, passing: bool = False
    ) -> ProbeResult:
        both = "--clip" in loop.arguments and "--sgd" in loop.arguments
        return recorded(*([SUMMED] if both else []))


def test_all_settings_that_do_not_matter_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "newest", lambda packages, day: {"package": "1.0"})
    monkeypatch.setattr(Hunter, "_since", lambda *_: "")
    monkeypatch.setattr(HuntedStack, "rows", lambda _: [(1, 1, 1, 1)])
    choices = {name: flags("", f"--{name}") for name in ("bf16", "clip", "fused", "sgd")}
    stack = HuntedStack("stack", Loop("ddp.py"), ("package",), choices)
    (breakage,) = NeedsTwo(Pool(), lambda _: None).hunt(stack, "2026-11-22").findings
    assert breakage.simplest == "ddp.py --clip --sgd"


STACK = HuntedStack(
    "stack",
    Loop("ddp.py"),
    ("package",),
    {"optimizer": flags("", "--sgd"), "clipping": flags("", "--clip 1"), "p": flags("", "--bf16")},
)


def test_what_breaks_is_reduced_to_the_settings_that_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hunt, "newest", lambda packages, day: {"package": "1.0"})
    monkeypatch.setattr(Hunter, "_since", lambda *_: "package 0.9; 0.8 is right")
    hunted = Replayed(Pool(), lambda _: None).hunt(STACK, "2026-11-22")
    (breakage,) = hunted.findings
    assert breakage.simplest == "ddp.py --clip 1"
    assert breakage.shown == [SUMMED]
    assert not breakage.known
    assert set(hunted.unclear.values()) == {"bf16 is missing"}
    assert hunt.exit_code([hunted]) == 1


@pytest.mark.parametrize(
    ("arguments", "bugs"),
    [("--model llama --group-by-length", ["length_grouped_resume"]), ("--model llama", [])],
)
def test_a_fault_is_known_only_with_the_settings_that_the_bug_needs(
    arguments: str, bugs: list[str]
) -> None:
    releases = {"transformers": "5.23.0", "accelerate": "1.13.0"}
    loop = Loop("trainer.py", arguments)
    assert hunt._known_bugs(frozenset({MISSING.kind}), loop, releases) == bugs


def test_a_bug_that_only_an_edit_puts_back_is_not_named_for_an_untested_release() -> None:
    gradient = Sign("both", "gradient", 0.463)
    bugs = hunt._known_bugs(frozenset({gradient.kind}), Loop("zero.py"), {"deepspeed": "0.18.2"})
    assert "zero2_micro_batches_lost" in bugs
    assert "tied_grad_reduce" not in bugs


def test_settings_after_the_deadline_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "newest", lambda packages, day: {"package": "1.0"})
    hunted = Replayed(Pool(), lambda _: None, deadline=0.0).hunt(STACK, "2026-11-22")
    assert (hunted.probed, hunted.left) == (0, len(STACK.rows()))
    assert hunt.exit_code([hunted]) == 3


@pytest.mark.parametrize(("bugs", "code"), [(["heads_gas_ranks"], 0), ([], 1)])
def test_only_what_the_catalogue_does_not_know_is_an_alarm(bugs: list[str], code: int) -> None:
    breakage = Breakage("stack", {"package": "1.0"}, [SUMMED], "ddp.py", 1, "package 1.0", bugs)
    hunted = [Hunted("stack", {"package": "1.0"}, 3, findings=[breakage])]
    assert hunt.exit_code(hunted) == code
    assert "ranks: gradient 2 times (ranks)" in hunt.markdown_page("2026-11-22", hunted)
    assert complaints("hunt.json", json.loads(hunt.as_json("2026-11-22", hunted))) == []
    assert any("1 settings" in line for line in hunt.text(hunted[0]))


@pytest.mark.parametrize("stack", STACKS, ids=[stack.name for stack in STACKS])
def test_every_loop_that_is_hunted_can_be_run(stack: HuntedStack) -> None:
    assert Path(loops.script(stack.loop.script)).is_file()
    for row in stack.rows():
        loop = stack.loop_of(row)
        assert loop.settings().steps > loop.at
        assert loop.target().arguments


def test_a_choice_of_a_resume_sets_where_it_stops() -> None:
    stack = HuntedStack(
        "s", Loop("ddp.py"), ("p",), {"resume": (Choice(), Choice("--x", at=5, steps=7))}
    )
    loop = stack.loop_of((1,))
    assert (loop.arguments, loop.at, loop.steps) == ("--x", 5, 7)
