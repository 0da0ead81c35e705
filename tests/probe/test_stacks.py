"""probe of loops as the documentation of each package teaches them.

The bugs are those of upstream's releases: nothing is put in.
"""

from __future__ import annotations

import pytest

from harness.launch.server_pool import Pool
from harness.probe.layouts import ACCUMULATION, BOTH, RANKS, Settings
from tests.overlays import lent, lent_packages, lent_release
from tests.probe.probing import RESUMED, SAVE, Probing, first_broken, layout, refused

pytestmark = [pytest.mark.launch, pytest.mark.slow]

GIVEN = "--batch-size {rows} --accum {k}"
RESUMABLE = Settings(save=SAVE, resume=RESUMED)
TRAINER = (
    "--output_dir {dir} --per_device_train_batch_size {rows} --gradient_accumulation_steps {k} "
    "--report_to none --logging_strategy no --save_strategy no"
)
TRAINER_RESUMABLE = Settings(
    save="--save_strategy steps --save_steps {at}",
    resume="--resume_from_checkpoint {dir}/checkpoint-{at}",
)


DAY = "2026-11-20"


@pytest.mark.parametrize("more", ["", "--bf16 --clip 0.5"])
def test_fsdp2_is_as_one_process(pool: Pool, more: str) -> None:
    answers = Probing(pool)("fsdp2.py", f"{GIVEN} {more}", Settings())
    assert not refused(answers)
    assert first_broken(answers) == {}


def test_accelerate_is_as_one_process_and_resumes(pool: Pool) -> None:
    with lent("trainer_gas_twice", "fixed") as overlays:
        answers = Probing(pool, overlays["fixed"].site)("accelerated.py", GIVEN, RESUMABLE)
    assert not refused(answers)
    assert first_broken(answers) == {}


def test_the_trainer_is_as_one_process_and_resumes(pool: Pool) -> None:
    with lent("trainer_gas_twice", "fixed") as overlays:
        answers = Probing(pool, overlays["fixed"].site)("trainer.py", TRAINER, TRAINER_RESUMABLE)
    assert not refused(answers)
    assert first_broken(answers) == {}


def test_a_gradient_that_all_layouts_have_too_small_is_noted(pool: Pool) -> None:
    with lent("trainer_gas_twice", "fixed") as overlays:
        probing = Probing(pool, overlays["fixed"].site)
        answers = probing("trainer.py", f"{TRAINER} --model gpt2", Settings(layouts=(RANKS,)))
    assert first_broken(answers) == {}
    assert any("0.8696 times that of the mean cross-entropy" in note for note in answers.notes)


def test_a_trainer_that_divides_by_the_steps_twice_is_found(pool: Pool) -> None:
    with lent("trainer_gas_twice", "buggy") as overlays:
        answers = Probing(pool, overlays["buggy"].site)("trainer.py", TRAINER, Settings())
    assert not refused(answers)
    twice = ("gradient", "divided by the accumulation steps twice")
    assert first_broken(answers) == {ACCUMULATION: twice, BOTH: twice}


def test_a_loss_of_an_evaluation_that_is_summed_over_the_ranks_is_found(pool: Pool) -> None:
    given = f"{TRAINER} --model bert-sequence --evaluate true --eval_strategy steps --eval_steps 2"
    with lent_packages(DAY, trl="1.16.0", transformers="5.23.0") as overlay:
        answers = Probing(pool, overlay.site)("trainer.py", given, Settings(layouts=(RANKS,)))
    ratios = {one.relation: one.ratio for one in layout(answers, RANKS).broken}
    assert ratios["evaluation"] == pytest.approx(2, rel=1e-3)


def test_a_sampler_that_gives_rows_to_several_ranks_is_found(pool: Pool) -> None:
    given = f"{GIVEN} --device-specific"
    with lent("sampler_shards", "buggy") as overlays:
        answers = Probing(pool, overlays["buggy"].site)("accelerated.py", given, Settings())
    assert not refused(answers)
    assert first_broken(answers)[RANKS][0] == "samples"
    assert ACCUMULATION not in first_broken(answers)


@pytest.mark.parametrize("more", ["", "--sequence --clip 0.5", "--loss-parallel"])
def test_tensor_parallelism_is_as_one_process(pool: Pool, more: str) -> None:
    answers = Probing(pool)("tensor_parallel.py", f"{GIVEN} {more}", Settings(same_rows=True))
    assert not refused(answers)
    assert first_broken(answers) == {}


@pytest.mark.parametrize("more", ["", "--schedule InterleavedZeroBubble --stages 2 --shared"])
def test_a_pipeline_of_torch_is_as_one_process(pool: Pool, more: str) -> None:
    given = f"{GIVEN} --own-scale {more}"
    answers = Probing(pool)("torch_pipeline.py", given, Settings(same_rows=True))
    assert not refused(answers)
    assert first_broken(answers) == {}


def test_stages_with_the_same_names_on_each_replica_are_as_one_process(pool: Pool) -> None:
    answers = Probing(pool)("torch_pipeline_ddp.py", GIVEN, Settings())
    assert not refused(answers)
    assert first_broken(answers) == {}


@pytest.mark.parametrize("more", ["", "--stages 2 --tied", "--replicas 2 --sharded --clip 0.1"])
def test_megatron_core_is_as_one_process(pool: Pool, more: str) -> None:
    with lent("tied_embedding_training", "fixed") as overlays:
        probing = Probing(pool, overlays["fixed"].site)
        answers = probing("megatron_gpt.py", f"{GIVEN} {more}", Settings(same_rows=True))
    assert not refused(answers)
    assert first_broken(answers) == {}


def test_a_backward_that_is_not_that_of_its_forward_is_noted(pool: Pool) -> None:
    bug = ["--loss-parallel", "--bug", "log_softmax within loss_parallel"]
    settings = Settings(same_rows=True, layouts=(RANKS,))
    answers = Probing(pool)("tensor_parallel.py", [*GIVEN.split(), *bug], settings)
    assert first_broken(answers) == {}
    assert any("a backward is not that of its forward" in note for note in answers.notes)


@pytest.mark.parametrize("more", ["", "--optimizer sgd --clip 0.1 --precision bf16-mixed"])
def test_lightning_is_as_one_process_and_resumes(pool: Pool, more: str) -> None:
    given = f"{GIVEN} --devices {{ranks}} {more}"
    with lent_packages(DAY, lightning="2.6.6") as overlay:
        answers = Probing(pool, overlay.site)("lightning_module.py", given, RESUMABLE)
    assert not refused(answers)
    assert first_broken(answers) == {}


@pytest.mark.parametrize("more", ["", "--training-step"])
def test_fabric_is_as_one_process(pool: Pool, more: str) -> None:
    given = f"{GIVEN} --devices {{ranks}} {more}"
    with lent_packages(DAY, lightning="2.6.6") as overlay:
        settings = Settings(layouts=(RANKS, ACCUMULATION, BOTH))
        answers = Probing(pool, overlay.site)("fabric_ddp.py", given, settings)
    assert not refused(answers)
    assert first_broken(answers) == {}


def test_sft_is_as_one_process_and_resumes(pool: Pool) -> None:
    given = f"{TRAINER} --use_cpu --bf16 false --max_length 64"
    with lent_packages(DAY, trl="1.16.0", transformers="5.23.0") as overlay:
        answers = Probing(pool, overlay.site)("sft.py", given, TRAINER_RESUMABLE)
    assert not refused(answers)
    assert first_broken(answers) == {}


@pytest.mark.parametrize("release", ["0.19.8", "0.18.9"])
@pytest.mark.parametrize(
    "more", ["--stage 0", "--stage 1 --bf16 --clip 0.1", "--stage 2", "--stage 3"]
)
def test_deepspeed_is_as_one_process_and_resumes(pool: Pool, more: str, release: str) -> None:
    with lent_release("tied_grad_reduce", release) as overlay:
        answers = Probing(pool, overlay.site)("zero.py", f"{GIVEN} {more}", RESUMABLE)
    assert not refused(answers)
    assert first_broken(answers) == {}
