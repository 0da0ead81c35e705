"""What guard compares of weights that an engine splits, and what it leaves out."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from harness.releases.overlay import Overlay
from harness.system.files import ROOT
from tests.guard.trainer import Run, Trainer, server
from tests.overlays import lent, lent_packages, lent_release


@dataclass
class Engine:
    """What runs a training."""

    overlay: Callable[[], AbstractContextManager[Any]]
    shims: tuple[str, ...] = ()


DEEPSPEED = Engine(partial(lent_release, "tied_grad_reduce", "0.19.8"), ("deepspeed",))
MEGATRON = Engine(partial(lent, "tied_embedding_training", "fixed"), ("megatron-core",))
LIGHTNING = Engine(partial(lent_packages, "2026-11-20", lightning="2.6.6"))
TRAINER = Engine(partial(lent, "trainer_gas_twice", "fixed"))
WRONG_TRAINER = Engine(partial(lent, "trainer_gas_twice", "buggy"))
TRAINED = "trainer.py --model llama --use_cpu --gradient_accumulation_steps 2 --output_dir FOLDER"


def run(engine: Engine, words: str, folder: Path, fault: str = "", ranks: int = 2) -> Run:
    """Run a loop of ``loops/`` under guard; FOLDER in its words is a folder that runs share."""
    loop, *arguments = words.replace("FOLDER", str(folder)).split()
    request: dict[str, Any] = {"script": str(ROOT / "loops" / loop), "arguments": arguments}
    request |= {"shims": engine.shims, "engine": {"fault": fault}}
    reports = folder / (fault or "right") / str(len(list(folder.iterdir())))
    reports.mkdir(parents=True)
    with engine.overlay() as loan:
        overlay: Overlay = next(iter(loan.values())) if isinstance(loan, dict) else loan
        with server(overlay.site, DS_ACCELERATOR="cpu") as process:
            under_guard = Trainer(process, reports)
            return under_guard(ranks=ranks, request=request, every=2, saves=str(folder))


LONG = pytest.mark.by_day(4)
SHARDED = {"gradients": 6, "updates": 12, "masters": 6}
COPIED = {"gradients": 6, "replicas": 6, "updates": 12, "masters": 6}
PIPELINE = "pipeline.py --steps 14 --batch-size 4"
LOADED = "zero.py --batch-size 4 --stage 1 --bf16 --fp32-gradients --weights FOLDER/weights"
GPT = "megatron_gpt.py --batch-size 8"
ACCUMULATED = "zero.py --batch-size 2 --accum 2"
RIGHT = [
    (DEEPSPEED, "zero.py --batch-size 4 --stage 0", 2, {"gradients": 6, "replicas": 6}),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 1", 2, {"gradients": 6, "replicas": 6}),
    (DEEPSPEED, f"{ACCUMULATED} --stage 2 --clip 0.1", 2, {"gradients": 6}),
    (DEEPSPEED, f"{ACCUMULATED} --stage 3 --bf16 --clip 0.1", 2, SHARDED),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 3 --offload --groups", 2, SHARDED),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 2 --bf16 --offload", 2, {"gradients": 6}),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 1 --groups", 2, {"gradients": 6, "updates": 8}),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 1 --bf16 --fp32-gradients", 2, {"gradients": 6}),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 0 --bf16 --optimizer sgd", 2, COPIED),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 0 --fp16 --optimizer sgd --clip 0.1", 2, COPIED),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 1 --fp16 --scale 20", 2, {}),
    (DEEPSPEED, LOADED, 2, {"gradients": 6, "masters": 6}),
    (DEEPSPEED, f"{PIPELINE} --accum 2 --tied --norm", 2, {"gradients": 21, "replicas": 1}),
    (DEEPSPEED, f"{PIPELINE} --replicas 2 --tied --clip 9", 4, {"replicas": 19}),
    (DEEPSPEED, f"{PIPELINE} --replicas 2 --tied --stage 1 --clip 0.1", 4, {"gradients": 19}),
    (DEEPSPEED, f"{PIPELINE} --replicas 2 --tied --norm --bf16", 4, {"gradients": 21}),
    (MEGATRON, f"{GPT} --replicas 2", 2, {"gradients": 29, "replicas": 29}),
    (MEGATRON, GPT, 2, {"gradients": 14, "replicas": 15}),
    (MEGATRON, f"{GPT} --replicas 2", 4, {"gradients": 14}),
    (MEGATRON, f"{GPT} --replicas 2 --sharded", 2, {"gradients": 29, "replicas": 29}),
    (MEGATRON, f"{GPT} --replicas 2 --sharded --tied --clip 0.1", 2, {"gradients": 28}),
    (MEGATRON, f"{GPT} --replicas 2 --sharded", 4, {"gradients": 14}),
    (MEGATRON, f"{GPT} --replicas 2 --bf16 --clip 0.1", 2, {"gradients": 29, "masters": 29}),
    (MEGATRON, f"{GPT} --bf16", 2, {"gradients": 14, "masters": 29}),
    (MEGATRON, f"{GPT} --replicas 2 --sharded --bf16", 2, {"gradients": 29, "masters": 29}),
    (MEGATRON, f"{GPT} --stages 2", 2, {"gradients": 17}),
    (MEGATRON, f"{GPT} --stages 2 --tied --accum 2", 2, {"replicas": 1}),
    (
        MEGATRON,
        f"{GPT} --stages 2 --replicas 2 --tied --sharded",
        4,
        {"gradients": 16, "replicas": 28},
    ),
    (LIGHTNING, "lightning_module.py --batch-size 2 --devices 2 --accum 2", 2, {"gradients": 6}),
    (TRAINER, "accelerated.py --batch-size 2 --accum 2", 2, {"gradients": 4, "accumulation": 2}),
]


ZERO_2 = f"{ACCUMULATED} --stage 2 --clip 0.1"
SETTINGS: dict[str, dict[str, Any]] = {
    ZERO_2: {
        "zero_stage": 2,
        "gradient_clipping": 0.1,
        "gradient_accumulation_steps": 2,
        "pipeline_parallel": 1,
        "precision": "fp32",
    },
    f"{GPT} --replicas 2 --sharded": {"pipeline_parallel": 1, "distributed_optimizer": True},
    GPT: {"tensor_parallel": 2, "distributed_optimizer": False},
}
"""What guard reads of some engines."""


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("engine", "words", "ranks", "compared"), [pytest.param(*one, marks=LONG) for one in RIGHT]
)
def test_right_training_of_an_engine_is_silent(
    engine: Engine, words: str, ranks: int, compared: dict[str, int], tmp_path: Path
) -> None:
    end = run(engine, words, tmp_path, ranks=ranks)
    assert end.codes == [0] * ranks
    assert end.told == []
    assert not end.summary["error"]
    assert end.summary["compared"].items() >= compared.items()
    assert len(end.summary["checked"]) > 5
    assert end.summary["settings"].items() >= SETTINGS.get(words, {}).items()


WITHOUT_ZERO = "zero.py --batch-size 4 --stage 0 --optimizer sgd"
WRONG = [
    (DEEPSPEED, "zero.py --batch-size 4 --stage 1", "unreduced_by_deepspeed", "gradients", "mean"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 3", "unreduced_by_deepspeed", "gradients", "mean"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 3", "doubled_by_deepspeed", "gradients", "longer"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 2", "doubled_by_deepspeed", "gradients", "longer"),
    (DEEPSPEED, f"{ACCUMULATED} --stage 3", "lost_by_deepspeed", "gradients", "mean"),
    (DEEPSPEED, f"{ACCUMULATED} --stage 2 --bf16", "lost_by_deepspeed", "gradients", "mean"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 1 --bf16", "stuck", "replicas", "differ"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 2 --bf16", "stuck_master", "updates", "copy"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 3", "stuck_master", "updates", "copy"),
    (DEEPSPEED, f"{WITHOUT_ZERO} --bf16", "unreduced_by_deepspeed", "gradients", "mean"),
    (DEEPSPEED, f"{WITHOUT_ZERO} --bf16", "stuck_master", "updates", "copy"),
    (DEEPSPEED, f"{WITHOUT_ZERO} --fp16", "lost_loss", "scaler", "skips"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 2 --fp16", "lost_loss", "scaler", "skips"),
    (DEEPSPEED, f"{WITHOUT_ZERO} --fp16 --scale 2", "infinite", "scaler", "skips"),
    (DEEPSPEED, LOADED, "not_refreshed", "updates", "copy"),
    (DEEPSPEED, f"{PIPELINE} --tied", "untied", "gradients", "mean"),
    (DEEPSPEED, f"{PIPELINE} --tied --norm --stage 1", "untied", "replicas", "differ"),
    (DEEPSPEED, f"{PIPELINE} --clip 0.1", "", "gradients", "norm"),
    (MEGATRON, f"{GPT} --replicas 2 --sharded", "unreduced_by_megatron", "gradients", "mean"),
    (MEGATRON, f"{GPT} --stages 2 --tied", "untied_by_megatron", "gradients", "mean"),
    (MEGATRON, f"{GPT} --stages 2 --tied --sharded", "untied_by_megatron", "replicas", "differ"),
    (MEGATRON, f"{GPT} --replicas 2", "flipped", "replicas", "differ"),
    (MEGATRON, f"{GPT} --replicas 2", "unreduced_by_megatron", "gradients", "mean"),
    (DEEPSPEED, "zero.py --batch-size 4 --stage 0", "nan", "finite", "lost"),
    (DEEPSPEED, PIPELINE, "nan", "finite", "lost"),
    (LIGHTNING, "lightning_module.py --batch-size 2 --devices 2", "nan", "finite", "lost"),
    (TRAINER, f"{TRAINED} --per_device_train_batch_size 4", "nan", "finite", "lost"),
    (WRONG_TRAINER, f"{TRAINED} --per_device_train_batch_size 4", "", "accumulation", "weight"),
]


@pytest.mark.slow
@pytest.mark.launch
@pytest.mark.parametrize(
    ("engine", "words", "fault", "check", "kind"), [pytest.param(*one, marks=LONG) for one in WRONG]
)
def test_wrong_training_of_an_engine_is_told_once(
    engine: Engine, words: str, fault: str, check: str, kind: str, tmp_path: Path
) -> None:
    end = run(engine, words, tmp_path, fault)
    assert end.codes == [0, 0]
    assert end.told.count((check, kind)) == 1


@pytest.mark.slow
@pytest.mark.launch
def test_halved_loss_of_an_engine_is_not_seen(tmp_path: Path) -> None:
    """A loop may weigh its loss by one half."""
    end = run(DEEPSPEED, "zero.py --batch-size 4 --stage 1", tmp_path, "halved")
    assert end.codes == [0, 0]
    assert end.told == []
    assert "the step counts the loss 0.5 times instead of once" in end.summary["not_seen"][0]
