"""Events of saves and loads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .event import Call, Event, Place
from .patches import frames


@dataclass
class Checkpoint(Call):
    """A checkpoint of a training, by torch or by a package."""

    place: Place
    """What is called."""

    @property
    def of_engine(self) -> bool:
        """Whether the training is that of DeepSpeed's engine."""
        return self.place.kind == "DeepSpeedEngine"

    def argument(self, number: int, name: str, default: Any = None) -> Any:
        """An argument, by its number or name."""
        if number < len(self.arguments):
            return self.arguments[number]
        return self.keywords.get(name, default)

    @classmethod
    def of_call(cls, place: Place, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Event:
        owner, others = (arguments[0], arguments[1:]) if place.kind else (None, arguments)
        return cls(owner, others, keywords, place)


DISTRIBUTED = "torch.distributed.checkpoint"


@dataclass
class Save(Checkpoint):
    """A checkpoint is saved."""

    places: ClassVar[tuple[Place, ...]] = (
        Place("torch", "", "save"),
        Place(DISTRIBUTED, "", "save"),
        Place(DISTRIBUTED, "", "async_save"),
        Place("deepspeed.runtime.engine", "DeepSpeedEngine", "save_checkpoint"),
    )
    everywhere = True

    @property
    def is_by_torch(self) -> bool:
        """Whether ``torch.save`` writes it, which writes any object."""
        return self.place.module == "torch"

    @property
    def is_distributed(self) -> bool:
        """Whether torch's distributed checkpoint is written."""
        return self.place.module == DISTRIBUTED

    @property
    def state(self) -> Any:
        """What torch saves."""
        return self.argument(0, "obj" if self.is_by_torch else "state_dict")

    @property
    def path(self) -> str:
        """Where it is saved, if the caller names a file or a folder; otherwise empty."""
        if self.of_engine:
            default = f"global_step{getattr(self.owner, 'global_steps', '')}"
            tag = self.argument(1, "tag") or default
            return path_of(os.path.join(str(self.argument(0, "save_dir")), str(tag)))
        if self.is_distributed:
            return distributed_path(self.keywords, "storage_writer")
        return path_of(self.argument(1, "f"))


PLANNERS = f"{DISTRIBUTED}.default_planner"


@dataclass
class PlannedSave(Save):
    """torch plans what it saves: this is seen also where a function has imported ``save`` before
    anything subscribed."""

    places = (Place(PLANNERS, "DefaultSavePlanner", "set_up_planner"),)

    @property
    def state(self) -> Any:
        """What torch saves."""
        return self.argument(0, "state_dict")

    @property
    def path(self) -> str:
        """Nothing: the planner does not know it."""
        return ""


@dataclass
class SavedTensors(Save):
    """safetensors writes a file."""

    places = (Place("safetensors.torch", "", "save_file"),)

    @property
    def state(self) -> Any:
        """What it writes."""
        return self.argument(0, "tensors")

    @property
    def path(self) -> str:
        """The file."""
        return path_of(self.argument(1, "filename"))


@dataclass
class PlannedLoad(Event):
    """torch plans to fill a state that is there."""

    places = (Place(PLANNERS, "DefaultLoadPlanner", "set_up_planner"),)


@dataclass
class Load(Checkpoint):
    """A checkpoint is loaded."""

    places: ClassVar[tuple[Place, ...]] = (
        Place("deepspeed.runtime.engine", "DeepSpeedEngine", "load_checkpoint"),
        Place("accelerate.accelerator", "Accelerator", "load_state"),
        Place("transformers.trainer", "Trainer", "_load_optimizer_and_scheduler"),
    )

    @property
    def has_loaded(self) -> bool:
        """Whether there was a checkpoint to load."""
        if self.of_engine:
            return bool(self.path)
        return not (self.place.kind == "Trainer" and self.argument(0, "checkpoint") is None)

    @property
    def path(self) -> str:
        """The folder of the checkpoint, if that is known; otherwise empty."""
        if not self.of_engine:
            name = "checkpoint" if self.place.kind == "Trainer" else "input_dir"
            return path_of(self.argument(0, name))
        file = self.value[0] if isinstance(self.value, tuple) else None
        return path_of(os.path.dirname(file)) if isinstance(file, str) else ""

    @property
    def has_optimizer(self) -> bool:
        """Whether it was to load the optimizer's state, too."""
        if not self.of_engine:
            return True
        is_asked = self.argument(3, "load_optimizer_states", True)
        return bool(is_asked) and not self.argument(5, "load_module_only", False)

    @property
    def is_by_engine(self) -> bool:
        """Whether DeepSpeed's engine loads all weights of its model itself."""
        return self.of_engine and self.argument(6, "custom_load_fn") is None


@dataclass
class RestoredTraining(Load):
    """Lightning's Trainer has loaded a checkpoint; the owner is what restores it."""

    places = tuple(
        Place(
            f"{package}.trainer.connectors.checkpoint_connector",
            "_CheckpointConnector",
            "restore_optimizers_and_schedulers",
        )
        for package in ("lightning.pytorch", "pytorch_lightning")
    )

    @property
    def has_loaded(self) -> bool:
        """Whether there was a checkpoint to load."""
        return bool(getattr(self.owner, "_loaded_checkpoint", None))

    @property
    def path(self) -> str:
        """The file, if that is known; otherwise empty."""
        return path_of(getattr(getattr(self.owner, "trainer", None), "ckpt_path", None))


@dataclass
class FilledState(Call):
    """A state that is there is filled with the values of a distributed checkpoint of torch."""

    places = (Place(DISTRIBUTED, "", "load"),)
    everywhere = True

    @property
    def state(self) -> Any:
        """What was filled."""
        return next(iter(self.arguments), self.keywords.get("state_dict"))

    @property
    def path(self) -> str:
        """The folder, if the caller names it; otherwise empty."""
        return distributed_path(self.keywords, "storage_reader")


def path_of(value: Any) -> str:
    """The real path of a file or folder; empty for anything else, such as a buffer."""
    is_path = isinstance(value, (str, os.PathLike))
    return os.path.realpath(os.fspath(value)) if is_path else ""


def distributed_path(keywords: Mapping[str, Any], storage: str) -> str:
    """The folder of a distributed checkpoint, by the arguments of its save or load."""
    path = path_of(keywords.get("checkpoint_id"))
    return path or path_of(getattr(keywords.get(storage), "path", None))


@dataclass
class MergedAdapter(Call):
    """PEFT merges adapters into the weight of their layer, which is the owner."""

    places = (
        Place("peft.tuners.lora.layer", "Linear", "merge"),
        Place("peft.tuners.lora.layer", "Embedding", "merge"),
        Place("peft.tuners.ia3.layer", "Linear", "merge"),
        Place("peft.tuners.boft.layer", "Linear", "merge"),
        Place("peft.tuners.oft.layer", "Linear", "merge"),
        Place("peft.tuners.hra.layer", "HRALinear", "merge"),
        Place("peft.tuners.fourierft.layer", "FourierFTLinear", "merge"),
        Place("peft.tuners.lycoris_utils", "LycorisLayer", "merge"),
    )

    @property
    def has_all(self) -> bool:
        """Whether the layer's active adapters are merged, and the caller names no others."""
        names = self.arguments[1] if len(self.arguments) > 1 else self.keywords.get("adapter_names")
        return names is None


@dataclass
class AsyncSave(Call):
    """A checkpoint begins to be saved, which goes on during the next steps. The first argument is
    what is saved."""

    places = (
        Place("torch.distributed.checkpoint.state_dict_saver", "", "async_save"),
        Place("lightning.pytorch.plugins.io.async_plugin", "AsyncCheckpointIO", "save_checkpoint"),
        Place("pytorch_lightning.plugins.io.async_plugin", "AsyncCheckpointIO", "save_checkpoint"),
    )
    everywhere = True


@dataclass
class LoadedState(Event):
    """An optimizer loads a state."""

    places = (Place("torch.optim.optimizer", "Optimizer", "load_state_dict"),)

    @property
    def by_names(self) -> tuple[Any, Mapping[str, Any]]:
        """The model, and by the name of a weight what ``set_optimizer_state_dict`` of torch was
        given, if that loads the state; nothing if the caller leaves out frozen weights."""
        for frame in frames():
            if frame.f_code.co_name == "_load_optim_state_dict":
                values = frame.f_locals
                state, info = values.get("state_dict"), values.get("info")
                is_whole = not getattr(info, "ignore_frozen_params", False)
                states = state.get("state") if isinstance(state, dict) and is_whole else None
                return values.get("model"), states if isinstance(states, dict) else {}
        return None, {}
