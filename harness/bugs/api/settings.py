"""Settings of a training run that decide whether it meets a bug. Standard library only.

A scenario names the conditions for its bug in ``Scenario.settings``; all of them must hold. A file
with settings, such as a DeepSpeed configuration, decides some of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.python.results import Setting
from harness.system.conditions import Condition, holds, word_of
from harness.system.conditions import in_words as phrase
from harness.system.text import listed

SETTINGS: Mapping[str, str] = {
    "precision": "fp32, bf16 or fp16",
    "gradient_clipping": "the largest norm of a gradient; 0 does not clip",
    "gradient_accumulation_steps": "micro-batches in a step",
    "dynamic_loss_scale": "whether fp16's loss scale changes during training",
    "zero_stage": "DeepSpeed's ZeRO stage, 0 to 3",
    "warmup_of_deepspeed": "whether DeepSpeed's configuration has a warmup schedule",
    "muon_of_deepspeed": "whether DeepSpeed's configuration names the optimizer Muon",
    "offload_optimizer": "whether DeepSpeed keeps the optimizer on the CPU or on a disk",
    "contiguous_gradients": "whether DeepSpeed's ZeRO copies gradients into one buffer",
    "partition_activations": "whether DeepSpeed splits the checkpoints of activations",
    "curriculum_learning": "whether DeepSpeed's data efficiency library chooses samples",
    "distributed_optimizer": "whether Megatron's distributed optimizer is used",
    "tensor_parallel": "ranks that share a layer",
    "pipeline_parallel": "stages of the pipeline",
    "ranks": "processes of the run",
    "code": "decided by the training script alone",
    "trainer": "whether transformers' Trainer runs the loop",
}
"""Every setting that a condition may name."""

RANKS = "ranks"
CODE = "code"
"""The condition that is a text, which completes "whether"."""


def in_words(conditions: Mapping[str, Condition]) -> dict[str, str]:
    """Each condition as text, by its setting: ``{"precision": "bf16 or fp16"}``."""
    return {
        name: condition if name == CODE else phrase(condition)
        for name, condition in conditions.items()
    }


@dataclass(frozen=True)
class Trigger:
    """Whether settings set off a bug."""

    met: bool | None
    """None if the settings do not decide it."""
    why: str


UNSAID = Setting(None)


def trigger(conditions: Mapping[str, Condition], settings: Mapping[str, Setting]) -> Trigger:
    """Whether a run with these settings meets all conditions.

    One condition that is certainly not met is enough for False.
    """
    if not conditions:
        return Trigger(None, "no setting decides whether the bug is triggered")
    undecided = []
    for name, condition in conditions.items():
        setting = settings.get(name, UNSAID)
        if name == CODE:
            undecided.append(f"whether {condition}")
        elif setting.value is None:
            undecided.append(name + _note(setting))
        elif not holds(condition, setting.value):
            return Trigger(False, f"{_is(name, setting)}, not {phrase(condition)}")
    if undecided:
        return Trigger(None, f"your settings do not decide {listed(undecided)}")
    return Trigger(True, ", ".join(_is(name, settings[name]) for name in conditions))


def _is(name: str, setting: Setting) -> str:
    return f"{name} is {word_of(setting.value)}{_note(setting)}"


def _note(setting: Setting) -> str:
    return f" ({setting.note})" if setting.note else ""
