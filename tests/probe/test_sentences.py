"""What a report says: each sentence appears where it helps, and only there."""

from __future__ import annotations

import runpy
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.rank.exits import Exit
from harness.rank.probe import launcher
from harness.rank.probe.exchange import Step
from harness.rank.probe.findings.unlike import SCHEDULE
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared, rows_after_resume
from harness.training.probe.compare.faults import Broken
from harness.training.probe.compare.relations import BEGAN_AGAIN
from harness.training.probe.layouts import ACCUMULATION, RANKS, RESUME, Layout, Settings, reference
from harness.training.probe.notes import relevant
from harness.training.probe.probe_report import exit_code, headline, text
from harness.training.probe.runner import LOG_LINES, Run, last_lines, where_failed
from tests.probe.probing import GIVEN, SCRIPTS, Probing, layout

DDP = (SCRIPTS / "ddp.py").read_text()


def test_the_last_lines_are_those_of_the_output_and_of_the_errors(tmp_path: Path) -> None:
    logs = tmp_path / "logs" / "rank_0"
    logs.mkdir(parents=True)
    (tmp_path / "torchrun.log").write_text("the agent\n")
    assert last_lines(tmp_path, Exit(1, 1.0)) == "the agent"
    failure = {"rank": 0, "message": "SystemExit: a sentence"}
    assert last_lines(tmp_path, Exit(1, 1.0, failure=failure)) == "", "it says all"
    (logs / "stdout.log").write_text("".join(f"out {n}\n\n" for n in range(30)))
    assert last_lines(tmp_path, Exit(0, 1.0)).splitlines()[-1] == "out 29"
    (logs / "stderr.log").write_text("".join(f"err {n}\n" for n in range(30)))
    lines = last_lines(tmp_path, Exit(0, 1.0)).splitlines()
    assert len(lines) == LOG_LINES
    assert lines[3:5] == ["out 29", "err 22"]
    (logs / "stderr.log").write_text("one warning\n")
    assert last_lines(tmp_path, Exit(0, 1.0)).splitlines()[-2:] == ["out 29", "one warning"]


def test_the_schedule_of_accelerate_excuses_no_layout_on_one_rank() -> None:
    base = reference(Settings())
    for world, notes in ((1, []), (2, [SCHEDULE])):
        comparison = Compared(replace(base, world=world), broken=[Broken("schedule", "")])
        assert relevant([SCHEDULE], [comparison]) == notes


@pytest.fixture
def changed(probing: Probing):  # type: ignore[no-untyped-def]
    """Probes the DDP loop with ``new`` instead of ``old`` in its text."""

    def changed(old: str, new: str, settings: Settings, options: str = ""):  # type: ignore[no-untyped-def]
        assert old in DDP
        return probing(DDP.replace(old, new), f"{GIVEN} {options}", settings)

    return changed


CROPS = "trained(torch.where(torch.rand(9, *ids.shape)[8] < 0.5, ids, ids * 0 + 1))"
CUT = "trained(torch.cat([ids[:1] * (torch.arange(ids.shape[1]) < 11), ids[1:]]))"


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("rows", "parts", "other"),
    [
        # They are no question of an evaluation.
        (CROPS, ["changes them at random", "depend on the row"], "evaluation"),
        # trl 0.12.1's DPOTrainer cuts a token off the longest row of each micro-batch.
        (CUT, ["of 12 rows of step 1 are other ones", "in its micro-batch"], "at random"),
    ],
)
def test_rows_that_change_at_random_or_depend_on_their_micro_batch_are_told(
    changed: Any, rows: str, parts: list[str], other: str
) -> None:
    answers = changed("trained(ids)", rows, Settings(layouts=(ACCUMULATION,)))
    why = layout(answers, ACCUMULATION).no_answer
    assert all(part in why for part in parts)
    assert other not in why


@pytest.mark.slow
@pytest.mark.launch
def test_the_only_right_parameter_is_named(changed) -> None:  # type: ignore[no-untyped-def]
    old = '        if bug == "clips each micro-batch":'
    new = (
        "        if world > 1 and is_last:\n"
        "            for n, p in enumerate(model.parameters()):\n"
        "                p.grad.mul_(1.0 if n == 4 else 2 + n)\n" + old
    )
    answers = changed(old, new, Settings(layouts=(RANKS,)))
    text = " ".join(layout(answers, RANKS).broken[0].details)
    assert text.endswith(" and 3 more; right: 3.bias")


@pytest.mark.slow
@pytest.mark.launch
def test_a_parameter_that_hardly_counts_is_named(changed) -> None:  # type: ignore[no-untyped-def]
    """The whole gradient is 1.00001 times the right one, which says nothing."""
    old = '        if bug == "clips each micro-batch":'
    new = (
        "        if world > 1 and is_last:\n"
        "            list(model.parameters())[4].grad.mul_(1.003)\n" + old
    )
    (fault, *_) = layout(changed(old, new, Settings(layouts=(RANKS,))), RANKS).broken
    assert "as a whole about the reference's, but not in 1 of 7 parameters" in fault.text
    assert fault.details[0].startswith("only 3.bias 1.003 times; right: ")


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(("rows", "left"), [(40, 1), (44, 2)])
def test_a_shorter_last_step_is_divided_by_the_micro_batches_of_a_full_one(
    changed: Any, rows: int, left: int
) -> None:
    """Lightning divides so at the end of each epoch."""
    old = "for step in range(begun, len(batches) // accum):"
    new = (
        "reduced = dist.all_reduce\n"
        "def all_reduce(tokens):\n"
        "    reduced(tokens)\n"
        "    tokens *= accum / len(micro_batches)\n"
        "dist.all_reduce = all_reduce\n"
        "for step in range(begun, -(-len(batches) // accum)):"
    )
    answers = changed(old, new, Settings(layouts=(ACCUMULATION,)), f"--rows {rows}")
    comparison = layout(answers, ACCUMULATION)
    assert comparison.step == 4
    assert comparison.broken[0].meaning == f"{left} of 3 micro-batches, divided by 3"
    assert f"times the right one ({left} of 3 micro-batches, divided by 3)" in headline(answers)


def recorded(*ranks: str) -> list[list[Step]]:
    """By rank, steps with these rows: a letter is a row, and spaces separate steps."""
    return [[Step(rows=[[*step]]) for step in rank.split()] for rank in ranks]


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        (("abc def",), "of 6 rows after the resume, 6 come again that were trained before"),
        (("agm",), "of 3 rows after the resume, 1 come again that were trained before the stop; 5"),
    ],
)
def test_a_resume_says_which_rows_it_has(ranks: tuple[str, ...], words: str) -> None:
    run = Run(Layout("stop and resume", RESUME, first=2), recorded(*ranks))
    assert rows_after_resume(run, recorded("abc def ghi jkl")[0]).startswith(words)


STACK = """Stack (most recent call first):
  File "/lib/python3.11/selectors.py", line 415 in select
  File "{folder}/data.py", line 7 in fetch
  File "{folder}/train.py", line 30 in <module>
"""


def test_the_innermost_line_of_the_users_own_files_is_named(tmp_path: Path) -> None:
    stack = tmp_path / "stack_rank_1.txt"
    (tmp_path / "stack_rank_0.txt").touch()  # a rank that could not be asked
    assert where_failed(tmp_path, None) == ""
    stack.write_text(STACK.format(folder=tmp_path))
    assert where_failed(tmp_path, tmp_path / "train.py") == "rank 1 was in fetch (data.py, line 7)"
    assert where_failed(tmp_path, None) == "rank 1 was in select (selectors.py, line 415)"


@pytest.mark.parametrize(
    ("text", "first", "last"),
    [
        ("def main():\n    {}['a']\nmain()\n", "in <module>", "KeyError: 'a'"),
        ("def main(:\n", ", line 1", "SyntaxError: "),
        ("import argparse\nargparse.nothing\n", "in <module>", "AttributeError: "),
    ],
)
def test_a_traceback_begins_with_the_scripts_own_line(
    tmp_path: Path, text: str, first: str, last: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(text)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        runpy.run_path(str(script), run_name="__main__")
    error = caught.value.with_traceback(caught.tb.tb_next)  # without this test's own frame
    lines = traceback.format_exception(type(error), error, launcher.of_script(error))
    frames = [line for line in lines if line.startswith("  File")]
    assert f'File "{script}"' in frames[0]
    assert first in frames[0]
    assert lines[-1].startswith(last)


def test_an_error_of_our_own_keeps_its_traceback() -> None:
    with pytest.raises(IndexError) as caught:
        launcher.main([])
    error = caught.value.with_traceback(caught.tb.tb_next)
    assert launcher.of_script(error) is error.__traceback__


LAYOUT: Layout = reference(Settings())


def test_without_samples_an_answer_is_not_green() -> None:
    answers = Answers("4 steps", [Compared(LAYOUT)])
    assert exit_code(answers) == 0
    answers.unseen = True
    assert exit_code(answers) == 3
    assert any("--without samples" in line for line in text(answers, 1.0))


@pytest.mark.parametrize(
    ("statuses", "code"),
    [(["right"], 0), (["right", "refused"], 3), (["no answer"], 3), (["refused", "wrong"], 1)],
)
def test_a_model_is_right_only_if_all_its_relations_are(statuses: list[str], code: int) -> None:
    relations = {str(number): [status, ""] for number, status in enumerate(statuses)}
    assert exit_code(Answers("", relations=relations)) == code


def test_independent_faults_have_a_line_each() -> None:
    relations = ("samples", "learning rate", "loss", "update", "optimizer")
    comparison = Compared(LAYOUT, broken=[Broken(name, f"{name} differs") for name in relations])
    lines = list(text(Answers("", [comparison]), 1.0))
    assert "    and as a result: loss, update" in lines
    assert "    learning rate: learning rate differs" in lines
    assert "    optimizer: optimizer differs" in lines


def test_another_factor_is_not_as_above() -> None:
    """A layout with 0.851 times the gradient was as one with 1.014 times."""
    faults = [
        Broken("gradient", "rank 0: 1.014 times the reference's", 1.014, details=("norm 1",)),
        Broken("gradient", "ranks 0, 1: 0.851 times the reference's", 0.851, details=("norm 2",)),
        Broken("gradient", "rank 0: 0.8511 times the reference's", 0.8511, details=("norm 3",)),
    ]
    report = list(text(Answers("", [Compared(LAYOUT, broken=[one]) for one in faults]), 1.0))
    assert "    ranks 0, 1: 0.851 times the reference's" in report
    assert "    norm 2" in report
    assert "    rank 0: 0.8511 times the reference's, as above" in report


def test_the_first_line_says_that_a_resume_began_again() -> None:
    comparison = Compared(LAYOUT, broken=[Broken("weights", BEGAN_AGAIN)])
    assert "begins again at step 1" in next(text(Answers("", [comparison]), 1.0))


def test_the_first_line_counts_the_notes_also_without_an_answer() -> None:
    answers = Answers("", [Compared(LAYOUT, no_answer="draws other rows")], notes=["zero_grad"])
    assert next(text(answers, 1.0)).endswith("no answer 1 rank. 1 note below")
