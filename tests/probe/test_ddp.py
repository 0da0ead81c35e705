"""A plain DDP loop: probe is silent if the loop is right, and names each mistake."""

from __future__ import annotations

import pytest

from harness.training.probe.layouts import ACCUMULATION, BOTH, RANKS, RESUME, Settings
from harness.training.probe.probe_report import exit_code
from tests.probe.probing import (
    GIVEN,
    NEVER,
    RESUMED,
    SAVE,
    SCRIPTS,
    SUMMED,
    Probing,
    first_broken,
    layout,
    refused,
    require_right,
    with_bug,
)
from tests.slow import slow

pytestmark = pytest.mark.launch

TWICE = "divided by the accumulation steps twice"
CLIPPED = ": rank 0: clipped 3 times a step, not 1; "
USUAL = Settings(layouts=(RANKS, ACCUMULATION))
RESUMES = Settings(save=SAVE, resume=RESUMED, layouts=(RESUME,))


@pytest.mark.parametrize(
    "options",
    [
        "",
        *slow(
            "--optimizer sgd --clip 0.1 --dropout 0.3 --seed 3",
            "--dtype bfloat16 --clip 0.5 --seed 4",
            "--amp float16 --clip 0.1",
        ),
    ],
)
def test_a_right_loop_is_as_the_reference_in_every_layout(probing: Probing, options: str) -> None:
    answers = probing("ddp.py", f"{GIVEN} {options}", Settings(save=SAVE, resume=RESUMED))
    assert [answer.layout.kind for answer in answers.layouts] == [RANKS, ACCUMULATION, BOTH, RESUME]
    require_right(answers)
    assert exit_code(answers) == 0


@pytest.mark.parametrize(
    ("bug", "options", "settings", "broken", "text"),
    [
        ("no all-reduce", "", USUAL, {RANKS: ("gradient", "")}, ""),
        ("never divided by k", "", USUAL, {ACCUMULATION: ("gradient", NEVER)}, ""),
        ("no sampler", "", USUAL, {RANKS: ("samples", "")}, ""),
        (
            "drops the last steps of several ranks",
            "",
            Settings(layouts=(RANKS,), epoch=True),
            {RANKS: ("samples", "")},
            "24 never",
        ),
        *slow(
            (
                "never divided by k",
                "",
                Settings(),
                dict.fromkeys((ACCUMULATION, BOTH), ("gradient", NEVER)),
                "",
            ),
            ("summed over ranks", "", USUAL, {RANKS: ("gradient", SUMMED)}, ""),
            ("summed over ranks", "--clip 0.1", USUAL, {RANKS: ("gradient", SUMMED)}, ""),
            ("divided by k twice", "--clip 0.1", USUAL, {ACCUMULATION: ("gradient", TWICE)}, ""),
            ("schedule by micro-batch", "", USUAL, {ACCUMULATION: ("learning rate", "")}, ""),
            ("zero_grad in each micro-batch", "", USUAL, {ACCUMULATION: ("gradient", "")}, ""),
            (
                "clips each micro-batch",
                "--clip 0.1 --optimizer sgd",
                USUAL,
                {ACCUMULATION: ("gradient", "")},
                CLIPPED,
            ),
            (
                "clips each micro-batch",
                "--clip 0.1",
                USUAL,
                {ACCUMULATION: ("gradient", "")},
                CLIPPED,
            ),
            (
                "steps after the first micro-batch",
                "",
                USUAL,
                {ACCUMULATION: ("samples", "")},
                ": a step came after 1 of 3 micro-batches: 4 rows, 4 of them distinct",
            ),
            (
                "no sampler",  # as in the reference
                "",
                Settings(layouts=(RANKS,), reference_ranks=2, ranks=4),
                {RANKS: ("samples", "")},
                "; all ranks are given the same",
            ),
            ("resume without optimizer", "", RESUMES, {RESUME: ("optimizer", "")}, "step 3: "),
            ("resume without schedule", "", RESUMES, {RESUME: ("learning rate", "")}, "step 4: "),
            ("resume from the first batch", "", RESUMES, {RESUME: ("samples", "")}, "step 3: "),
            (
                "resume is ignored",
                "",
                RESUMES,
                {RESUME: ("weights", "")},
                ": it began again at step 1: the resume arguments had no effect",
            ),
        ),
    ],
)
def test_a_mistake_is_named_in_the_layouts_that_have_it(
    probing: Probing,
    bug: str,
    options: str,
    settings: Settings,
    broken: dict[str, tuple[str, str]],
    text: str,
) -> None:
    answers = probing("ddp.py", with_bug(bug, options), settings)
    assert not refused(answers)
    assert first_broken(answers) == broken
    assert exit_code(answers) == 1
    comparison = layout(answers, next(iter(broken)))
    fault = comparison.broken[0]
    assert text in "; ".join([f"step {comparison.step}: {fault.text}", *fault.details])


def test_an_epoch_whose_last_step_is_not_full_is_right(probing: Probing) -> None:
    settings = Settings(save=SAVE, resume=RESUMED, epoch=True)
    answers = probing("ddp.py", f"{GIVEN} --rows 31", settings)
    assert first_broken(answers) == {}
    assert "fewer rows" in layout(answers, RANKS).notes[0]
    assert layout(answers, RESUME).as_reference


@pytest.mark.slow
def test_a_loop_that_shuffles_by_itself_gives_no_answer_on_several_ranks(probing: Probing) -> None:
    arguments = with_bug("shuffles by itself")
    answers = probing("ddp.py", arguments, USUAL)
    assert first_broken(answers) == {}
    assert "reads the rows in another order" in layout(answers, RANKS).no_answer
    assert "evaluation" not in layout(answers, RANKS).no_answer
    assert layout(answers, ACCUMULATION).as_reference
    assert exit_code(answers) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "micro_batches"), [("", "1 micro-batches,"), ("--accum 3", "3 micro-batches,")]
)
def test_a_script_that_nobody_asks_to_accumulate_gives_no_answer(
    option: str, micro_batches: str, probing: Probing
) -> None:
    answers = probing("ddp.py", f"--batch-size {{rows}} {option}", USUAL)
    assert layout(answers, RANKS).as_reference
    why = layout(answers, ACCUMULATION).no_answer
    assert f"each step came after {micro_batches}" in why
    assert "the command has no {k}" in why


SPLITS = """
import os, sys, torch
from torch.utils.data import DataLoader, random_split
torch.distributed.init_process_group("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
data, _ = random_split(torch.arange(40000.0).reshape(10000, 4), [9000, 1000])
own = torch.utils.data.Subset(data, range(rank, 9000, world))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for batch in DataLoader(own, int(sys.argv[1])):
    model(batch).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_script_without_a_seed_splits_on_each_rank_by_itself(probing: Probing) -> None:
    """Ranks that were forked from one process must not share its generators."""
    answers = probing(SPLITS, "{rows}", Settings(layouts=(RANKS,)))
    assert "sets no seed" in layout(answers, RANKS).no_answer


DRAWS = """
import sys, torch
rows, k = map(int, sys.argv[1:])
torch.manual_seed(0)
data, model = torch.randn(10000, 4), torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = lambda: data[torch.randint(10000, (rows,))]
with torch.no_grad():
    model(batch())
for _ in range(4):
    for _ in range(k):
        (model(batch()).square().mean() / k).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_an_evaluation_that_draws_from_the_same_generator_is_suspected(probing: Probing) -> None:
    settings = Settings(layouts=(ACCUMULATION,))
    answers = probing(DRAWS, "{rows} {k}", settings)
    assert "does an evaluation draw rows" in layout(answers, ACCUMULATION).no_answer


@pytest.mark.slow
def test_layouts_that_skip_other_steps_than_the_reference_give_no_answer(probing: Probing) -> None:
    arguments = f"{GIVEN} --amp float16 --scale 2000000"
    answers = probing("ddp.py", arguments, Settings(save=SAVE, resume=RESUMED))
    assert first_broken(answers) == {}
    assert "smaller scale" in layout(answers, RANKS).no_answer
    assert "smaller scale" in layout(answers, RESUME).no_answer
    assert exit_code(answers) == 3


@pytest.mark.slow
def test_a_resume_after_the_end_of_the_data_gives_no_answer(probing: Probing) -> None:
    settings = Settings(save=SAVE, resume=RESUMED, layouts=(RESUME,), steps=14, at=12)
    answers = probing("ddp.py", GIVEN, settings)
    assert refused(answers)
    assert exit_code(answers) == 3


@pytest.mark.slow
def test_several_ranks_may_call_a_wrapper_of_what_one_rank_calls(probing: Probing) -> None:
    """Lightning does so: names are then longer on several ranks, and the wrapper stays in
    evaluation mode after a validation."""
    text = (SCRIPTS / "ddp.py").read_text()
    for old, new in (
        ('if bug != "no all-reduce":', "if world > 1:"),
        ("Returning(model) if options.dataclass else model", "nn.Sequential(model)"),
        ('if options.optimizer == "adamw":', "trained.training = False\nif options.optimizer:"),
    ):
        assert old in text
        text = text.replace(old, new)
    answers = probing(text, GIVEN, Settings(layouts=(RANKS,)))
    assert not refused(answers)
    assert not answers.unseen
    assert first_broken(answers) == {}


@pytest.mark.slow
@pytest.mark.parametrize("options", ["--clip 0.1", "--clip 0.1 --fused", "--clip-value 1e-3"])
@pytest.mark.parametrize("bug", ["", "clips what is scaled", "clips before unscale_"])
def test_clipping_of_gradients_that_a_scaler_still_multiplies_is_noted(
    probing: Probing, bug: str, options: str
) -> None:
    """Every layout makes this mistake, so that only a note on the reference shows it."""
    words = [*f"{GIVEN} --amp float16 {options} --bug".split(), bug]
    answers = probing("ddp.py", words, Settings(layouts=(RANKS,)))
    noted = [note for note in answers.notes if note.startswith("clipping saw a gradient of norm")]
    assert len(noted) == bool(bug)
    assert first_broken(answers) == {}


@pytest.mark.slow
def test_a_factor_is_found_though_the_values_of_gradients_are_clipped(probing: Probing) -> None:
    """Only the clipped gradients were compared, which a small limit makes alike. A large one, which
    clips nothing, is right also where it is larger than a scale."""
    settings = Settings(layouts=(ACCUMULATION,))
    words = with_bug("never divided by k", "--clip-value 1e-7")
    answers = probing("ddp.py", words, settings)
    (fault, *_) = layout(answers, ACCUMULATION).broken
    assert fault.relation == "gradient"
    assert fault.ratio == pytest.approx(3, rel=1e-3)
    words = with_bug("clips each micro-batch", "--clip-value 1e-3")
    (fault, *_) = layout(probing("ddp.py", words, settings), ACCUMULATION).broken
    assert "clipped 3 times a step, not 1" in fault.text
    words = with_bug("clips before unscale_", "--amp float16 --clip-value 1e5")
    answers = probing("ddp.py", words, settings)
    assert first_broken(answers) == {}
    assert not [note for note in answers.notes if note.startswith("clipping saw")]


AVERAGING = """
def average(optimizer, *_):
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            dist.all_reduce(parameter.grad, SCALE)


optimizer.register_step_pre_hook(average)
scaler = torch"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scale", "options", "broken"),
    [
        ("dist.ReduceOp.AVG", "", {}),
        ("dist.ReduceOp.MAX", "", "gradient"),
        # The first rate is 0: only the second step shows whether it averages.
        ("dist.ReduceOp.AVG", "--decay-over 30", {}),
        ("dist.ReduceOp.MAX", "--decay-over 30", "gradient"),
    ],
)
def test_an_optimizer_may_average_the_gradients_in_its_step(
    probing: Probing, scale: str, options: str, broken: object
) -> None:
    """Optimizers that shard their state do so: until their step, each rank has its own gradient."""
    text = (SCRIPTS / "ddp.py").read_text()
    text = text.replace("\nscaler = torch", AVERAGING.replace("SCALE", scale), 1)
    arguments = [*GIVEN.split(), *options.split(), "--bug", "no all-reduce"]
    answers = probing(text, arguments, Settings(layouts=(RANKS, BOTH)))
    assert not refused(answers)
    relations = {what: relation for what, (relation, _) in first_broken(answers).items()}
    assert relations == (broken and {RANKS: broken, BOTH: broken})
