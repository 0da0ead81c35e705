"""Right training loops, one for each stack, as the stack's documentation teaches it.

They have a folder of their own, because two things run them: ``signatures`` on the releases of the
catalogue, and the tests. One script serves many bugs through its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.system.files import ROOT

FOLDER = ROOT / "loops"


@dataclass(frozen=True)
class Usual:
    """The arguments that a script is always given."""

    arguments: str
    save: str = ""
    resume: str = ""
    same_rows: bool = False
    """Whether its ranks are stages or parts of a model, which see the same rows."""


OWN = "--batch-size {rows} --accum {k}"
SAVE, RESUME = "--save {dir} --save-at {at}", "--resume {dir}"
TRAINER = (
    "--output_dir {dir} --per_device_train_batch_size {rows} --gradient_accumulation_steps {k} "
    "--report_to none --logging_strategy no --save_strategy no"
)
TRAINER_RESUME = (
    "--save_strategy steps --save_steps {at}",
    "--resume_from_checkpoint {dir}/checkpoint-{at}",
)

USUAL = {
    "accelerated.py": Usual(OWN, SAVE, RESUME),
    "augmented.py": Usual("--batch-size {rows}"),
    "composer_epochs.py": Usual("--batch-size {rows}"),
    "contrastive.py": Usual("--batch-size {rows}"),
    "dcp.py": Usual(OWN, SAVE, RESUME),
    "ddp.py": Usual(OWN, SAVE, RESUME),
    "deepspeed_parts.py": Usual(OWN, SAVE, RESUME),
    "dpo.py": Usual(f"{TRAINER} --use_cpu --bf16 false --max_length 32", *TRAINER_RESUME),
    "dtensor_rows.py": Usual(OWN, same_rows=True),
    "fabric_ddp.py": Usual(f"{OWN} --devices {{ranks}}"),
    "fla_layers.py": Usual(OWN),
    "flux.py": Usual(OWN),
    "fsdp1.py": Usual(OWN),
    "fsdp2.py": Usual(OWN),
    "fsdp2_accelerate.py": Usual(OWN, SAVE, RESUME),
    "habits.py": Usual(OWN),
    "language_model.py": Usual(OWN),
    "liger_kernels.py": Usual(OWN),
    "lightning_module.py": Usual(f"{OWN} --devices {{ranks}}", SAVE, RESUME),
    "megatron_gpt.py": Usual(OWN, same_rows=True),
    "megatron_router.py": Usual("--batch-size {rows}"),
    "megatron_style.py": Usual(OWN, same_rows=True),
    "pipeline.py": Usual(OWN, SAVE, RESUME, same_rows=True),
    "sft.py": Usual(f"{TRAINER} --use_cpu --bf16 false --max_length 64", *TRAINER_RESUME),
    "mixed_stream.py": Usual("--batch-size {rows}", SAVE, RESUME),
    "mm_runner.py": Usual(OWN, SAVE, RESUME),
    "policy.py": Usual(OWN),
    "stateful.py": Usual(OWN, SAVE, RESUME),
    "stream_epochs.py": Usual(OWN, SAVE, RESUME),
    "streaming.py": Usual(OWN, SAVE, RESUME),
    "tensor_parallel.py": Usual(OWN, same_rows=True),
    "tensor_plan.py": Usual(OWN, same_rows=True),
    "titan.py": Usual(f"{OWN} --stages {{ranks}}", same_rows=True),
    "titan_experts.py": Usual(OWN, same_rows=True),
    "torch_pipeline.py": Usual(OWN, same_rows=True),
    "torch_pipeline_ddp.py": Usual(OWN),
    "trainer.py": Usual(TRAINER, *TRAINER_RESUME),
    "zero.py": Usual(OWN, SAVE, RESUME),
    "zero_init.py": Usual(OWN),
}
"""By the name of the script."""


def script(name: str) -> str:
    """The path of a script."""
    return str(FOLDER / name)
