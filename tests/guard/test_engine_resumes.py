"""Resumes as users do them with accelerate, transformers, Lightning, DeepSpeed and safetensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.guard.test_engines import DEEPSPEED, LIGHTNING, TRAINER, Engine, run
from tests.guard.trainer import Run

pytestmark = [pytest.mark.slow, pytest.mark.launch, pytest.mark.by_day(8)]

ACCELERATED = "accelerated.py --batch-size 2 --accum 2 --save-at 5"
TRAINED = (
    "trainer.py --model plain --use_cpu --per_device_train_batch_size 4 --max_steps 12 "
    "--output_dir FOLDER/saved --save_strategy steps --save_steps 5 --rows 64"
)
MODULE = "lightning_module.py --batch-size 2 --devices 2"
ZERO = "zero.py --batch-size 4 --save-at 5"
WITHOUT_ZERO = f"{ZERO} --stage 0 --optimizer sgd --momentum 0.9"
FILES = "../tests/guard/resumptions.py files"
SAVE = {TRAINED: "", FILES: "save FOLDER"}
RESUME = {TRAINED: "--resume_from_checkpoint FOLDER/saved/checkpoint-5", FILES: "resume FOLDER"}
RIGHT = [
    (TRAINER, ACCELERATED),
    (TRAINER, FILES),
    (TRAINER, f"{FILES}_alone"),
    (TRAINER, TRAINED),
    (LIGHTNING, MODULE),
    (DEEPSPEED, f"{ZERO} --stage 0"),
    (DEEPSPEED, f"{WITHOUT_ZERO} --bf16"),
    (DEEPSPEED, f"{WITHOUT_ZERO} --fp16"),
    (DEEPSPEED, f"{ZERO} --stage 1"),
    (DEEPSPEED, f"{ZERO} --stage 1 --bf16 --fp32-gradients"),
    (DEEPSPEED, f"{ZERO} --stage 2 --bf16"),
    (DEEPSPEED, f"{ZERO} --stage 3"),
    (DEEPSPEED, f"{ZERO} --stage 3 --bf16"),
]


def resumed(engine: Engine, words: str, folder: Path, fault: str = "") -> Run:
    """Train and save without a fault, and resume."""
    key = FILES if words.startswith(FILES) else words
    first = run(engine, f"{words} {SAVE.get(key, '--save FOLDER/saved')}", folder)
    assert first.codes == [0, 0]
    assert first.told == []
    return run(engine, f"{words} {RESUME.get(key, '--resume FOLDER/saved')}", folder, fault)


@pytest.mark.parametrize(("engine", "words"), RIGHT)
def test_right_resume_of_an_engine_is_silent(engine: Engine, words: str, tmp_path: Path) -> None:
    end = resumed(engine, words, tmp_path)
    assert end.codes == [0, 0]
    assert end.told == []
    assert not end.summary["error"]
    assert bool(end.summary["compared"].get("checkpoints")) == ("files_alone" not in words)


STATE, WEIGHTS, AGAIN = ("checkpoints", "state"), ("checkpoints", "weights"), ("schedule", "again")
WRONG = [
    (TRAINER, ACCELERATED, "state_not_loaded", STATE),
    (TRAINER, ACCELERATED, "weights_not_loaded", WEIGHTS),
    (TRAINER, ACCELERATED, "schedule_not_loaded", AGAIN),
    (TRAINER, f"{FILES}_of_a_wrapper", "", WEIGHTS),
    (TRAINER, TRAINED, "state_not_loaded", STATE),
    (TRAINER, TRAINED, "schedule_not_loaded", AGAIN),
    (LIGHTNING, MODULE, "state_not_loaded", STATE),
    (LIGHTNING, MODULE, "weights_not_loaded", WEIGHTS),
    (LIGHTNING, MODULE, "schedule_not_loaded", AGAIN),
    (DEEPSPEED, f"{ZERO} --stage 0", "state_not_loaded", STATE),
    (DEEPSPEED, f"{ZERO} --stage 0", "weights_not_loaded", WEIGHTS),
    (DEEPSPEED, f"{ZERO} --stage 1", "schedule_not_loaded", AGAIN),
    (DEEPSPEED, f"{ZERO} --stage 3", "state_not_loaded", STATE),
]


@pytest.mark.parametrize(("engine", "words", "fault", "alarm"), WRONG)
def test_wrong_resume_of_an_engine_is_told_once(
    engine: Engine, words: str, fault: str, alarm: tuple[str, str], tmp_path: Path
) -> None:
    end = resumed(engine, words, tmp_path, fault)
    assert end.codes == [0, 0]
    assert end.told.count(alarm) == 1
