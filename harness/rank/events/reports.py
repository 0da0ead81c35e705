"""Events of numbers that are reported to the user."""

from __future__ import annotations

from dataclasses import dataclass

from .event import Call, Event, Place


@dataclass
class Report(Call):
    """Numbers are reported to the user: they are among the arguments, or are what it returns."""

    places = (
        Place("transformers.trainer", "Trainer", "log"),
        Place("accelerate.accelerator", "Accelerator", "log"),
        Place("torch.utils.tensorboard.writer", "SummaryWriter", "add_scalar"),
        Place("lightning.pytorch.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
        Place("pytorch_lightning.loops.evaluation_loop", "_EvaluationLoop", "on_run_end"),
    )


@dataclass
class Written(Event):
    """Something is written to TensorBoard: each method of a writer asks for its file first."""

    places = (
        Place("torch.utils.tensorboard.writer", "SummaryWriter", "_get_file_writer"),
        Place("tensorboardX.writer", "SummaryWriter", "_get_file_writer"),
    )
