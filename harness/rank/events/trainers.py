"""What trains a model where that is no optimizer of torch alone, and what it reports."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any

from .event import Call, Place
from .patches import frames


@dataclass
class TrainerEnd(Call):
    """transformers' Trainer has trained; the arguments are its settings, its state, and others."""

    places = (Place("transformers.trainer_callback", "CallbackHandler", "on_train_end"),)


@dataclass
class LoggedNumbers(Call):
    """Numbers are reported to the user: they are among the arguments, or are what it returns."""

    places = (
        Place("transformers.trainer", "Trainer", "log"),
        Place("accelerate.accelerator", "Accelerator", "log"),
        Place("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar"),
        Place("lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
        Place("pytorch_lightning.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
    )


def is_engine(module: Any) -> bool:
    """Whether a module is DeepSpeed's engine."""
    return any(kind.__name__ == "DeepSpeedEngine" for kind in type(module).__mro__)


def engine_of(module: Any) -> Any:
    """DeepSpeed's engine of a model that is called now: the model itself, or its caller, as a
    pipeline's engine calls its stage. None without an engine."""
    if is_engine(module):
        return module
    callers = (frame.f_locals.get("self") for frame in frames())
    engines = (one for one in callers if is_engine(one) and getattr(one, "module", None) is module)
    return next(engines, None)


def wrapper_of(optimizer: Any) -> Any:
    """Megatron's optimizer that wraps this one and distributes the weights after its step."""
    if "megatron.core.optimizer" not in sys.modules:
        return None
    for candidate in gc.get_objects():
        megatron = str(type(candidate).__module__).startswith("megatron.core.")
        if megatron and getattr(candidate, "optimizer", None) is optimizer:
            return candidate
    return None
