"""Read the settings of a training run, ``SETTINGS`` in ``api.settings``, from its files.

A file may leave a setting open: with a value of ``auto``, or because the script chooses it.
"""

from __future__ import annotations

import difflib
import math
import os.path
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.check.source import content_of, read_file
from harness.python.results import Setting
from harness.system.errors import UserError, unknown
from harness.system.text import short, warn

Values = dict[str, Setting]

AUTO = "auto"
"""What a DeepSpeed configuration says where transformers or accelerate fills in the value."""
DEFAULT = "its default"
DEVICES = ("none", "cpu", "nvme")
"""Where DeepSpeed keeps an optimizer; ``none`` is the GPU."""
PRECISIONS = ("no", "fp8", "fp16", "bf16")
"""Those of accelerate."""
CLOSE = 0.9
"""How alike a key must be to one that is read, to count as a typing error."""

TRAINER = (
    "bf16",
    "deepspeed",
    "fp16",
    "gradient_accumulation_steps",
    "learning_rate",
    "max_grad_norm",
    "output_dir",
    "per_device_train_batch_size",
)
"""Keys of which a file of this kind has at least one; so have those below."""
DEEPSPEED = (
    "activation_checkpointing",
    "bf16",
    "bfloat16",
    "data_efficiency",
    "fp16",
    "gradient_accumulation_steps",
    "gradient_clipping",
    "optimizer",
    "scheduler",
    "tensor_parallel",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "zero_optimization",
)
ACCELERATE = (
    "compute_environment",
    "deepspeed_config",
    "distributed_type",
    "megatron_lm_config",
    "mixed_precision",
    "num_processes",
)


def read(
    deepspeed: Path | None = None, training_args: Path | None = None, accelerate: Path | None = None
) -> Values:
    """The settings that these files decide together. Where two disagree, neither decides.

    Raises UserError for a file that cannot be read, or that is of another kind.
    """
    decisions = []
    if deepspeed:
        decisions.append(of_deepspeed(_settings_in(deepspeed, "JSON"), deepspeed))
    if training_args:
        decisions += _of_training_args(_settings_in(training_args, "JSON"), training_args)
    if accelerate:
        decisions += _of_accelerate(_settings_in(accelerate, "YAML"), accelerate)
    return merged(decisions)


def merged(decisions: Iterable[Values]) -> Values:
    """The settings of several files. Where two disagree, neither decides."""
    settings: Values = {}
    disputed: set[str] = set()
    for values in decisions:
        for name, setting in values.items():
            decision = settings.setdefault(name, setting)
            if name in disputed or setting.value in (None, decision.value):
                continue
            if decision.value is None:
                settings[name] = setting
            else:
                why = f"the files disagree: {decision.value} and {setting.value}"
                settings[name] = Setting(None, why)
                disputed.add(name)
    return settings


def of_deepspeed(content: Mapping[str, Any], where: Path) -> Values:
    """What a DeepSpeed configuration decides."""
    file = _SettingsPart(content, where)
    file.refuse_others(DEEPSPEED, "a DeepSpeed configuration")
    old_name = "bfloat16" if "bf16" not in content else "bf16"
    fp16, bf16, zero = map(file.part, ("fp16", old_name, "zero_optimization"))
    for part in (fp16, bf16):
        part.refuse_typos(("enabled", "loss_scale"))
    scheduler = file.part("scheduler").content.get("type")
    optimizer = file.part("optimizer").content.get("type")
    checkpoints = file.part("activation_checkpointing")
    scale = fp16.setting("loss_scale", _positive, 0).value
    return {
        "precision": _precision(
            fp16.content.get("enabled", False), bf16.content.get("enabled", False), where
        ),
        "dynamic_loss_scale": Setting(None, AUTO) if scale is None else Setting(scale == 0),
        "zero_stage": zero.setting("stage", _stage, 0),
        "gradient_clipping": file.setting("gradient_clipping", _number, 0),
        "gradient_accumulation_steps": _accumulation(file),
        "tensor_parallel": file.part("tensor_parallel").setting(
            "autotp_size", partial(_count, first=0)
        ),
        "warmup_of_deepspeed": Setting(
            None if scheduler is None else str(scheduler).startswith("Warmup")
        ),
        "muon_of_deepspeed": Setting(
            None if optimizer is None else str(optimizer).lower() == "muon"
        ),
        "offload_optimizer": _offload(zero),
        "contiguous_gradients": zero.setting("contiguous_gradients", _switch, True),
        "partition_activations": checkpoints.setting("partition_activations", _switch),
        "curriculum_learning": _curriculum(file),
    }


def _offload(zero: _SettingsPart) -> Setting:
    """Whether the optimizer is on the CPU or on a disk; old configurations have ``cpu_offload``."""
    part = zero.part("offload_optimizer")
    if not part.content:
        return zero.setting("cpu_offload", _switch, False)
    device = part.setting("device", _device, "none")
    return device if device.value is None else Setting(device.value != "none")


def _curriculum(part: _SettingsPart) -> Setting:
    """Whether the data efficiency library, its sampling and its curriculum are all on."""
    states = []
    for name in ("data_efficiency", "data_sampling", "curriculum_learning"):
        part = part.part(name)
        states.append(part.setting("enabled", _switch, False))
    return next((state for state in states if state.value is False), states[-1])


def _precision(fp16: Any, bf16: Any, where: Path) -> Setting:
    for name, value in (("fp16", fp16), ("bf16", bf16)):
        if value not in (True, False, AUTO):
            raise UserError(f"{where}: {name} is {value!r}, not true or false")
    if True in (bf16, fp16):  # 1 is true, too
        return Setting("bf16" if bf16 in (True,) else "fp16")
    return Setting(None, AUTO) if AUTO in (fp16, bf16) else Setting("fp32")


def _accumulation(file: _SettingsPart) -> Setting:
    """The steps of accumulation; DeepSpeed computes them from two batch sizes and the ranks."""
    name = "gradient_accumulation_steps"
    if file.content.get(name) is not None:
        return file.setting(name, _count)
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu")
    batch, micro = (file.setting(size, _count).value for size in sizes)
    if AUTO in map(file.content.get, sizes):
        return Setting(None, AUTO)
    if batch is None or micro is None or batch == micro:
        return Setting(1, DEFAULT)
    return Setting(None, "DeepSpeed computes it from the number of ranks")


def _of_training_args(content: Mapping[str, Any], where: Path) -> list[Values]:
    """What the arguments of transformers' Trainer decide; a key that is missing has its default.

    Without bf16 and fp16 the model's own dtype decides, so nothing is known of the precision.
    """
    file = _SettingsPart(content, where)
    file.refuse_others(TRAINER, "the Trainer's arguments")
    if "zero_optimization" in content:
        raise UserError(f"{where} is a DeepSpeed configuration: name it with --deepspeed")
    precision = _precision(content.get("fp16", False), content.get("bf16", False), where)
    values: Values = {
        "trainer": Setting(True),
        "pipeline_parallel": Setting(1, "the Trainer has no pipeline"),
        "gradient_accumulation_steps": file.setting("gradient_accumulation_steps", _count, 1),
        "gradient_clipping": file.setting("max_grad_norm", _number, 1.0),
        "precision": Setting(None, "the model's") if precision.value == "fp32" else precision,
    }
    inside = content.get("deepspeed")
    if isinstance(inside, Mapping):
        return [values, of_deepspeed(inside, where)]
    return [values, *_of_named_file(inside if isinstance(inside, str) else "", where)]


def _of_accelerate(content: Mapping[str, Any], where: Path) -> list[Values]:
    """What accelerate's configuration decides."""
    file = _SettingsPart(content, where)
    file.refuse_others(ACCELERATE, "accelerate's configuration")
    kind = content.get("distributed_type")
    megatron, plugin = (
        file.part(table if kind in (None, of) else "")  # another kind's table is left over
        for table, of in (("megatron_lm_config", "MEGATRON_LM"), ("deepspeed_config", "DEEPSPEED"))
    )
    precision = file.setting("mixed_precision", partial(_word, choices=PRECISIONS)).value
    steps = "gradient_accumulation_steps"
    values: Values = {
        "ranks": file.setting("num_processes", _count),
        "precision": Setting(precision if precision in ("bf16", "fp16") else None),
        "tensor_parallel": megatron.setting("megatron_lm_tp_degree", _count),
        "pipeline_parallel": megatron.setting("megatron_lm_pp_degree", _count),
        "distributed_optimizer": megatron.setting("megatron_lm_use_distributed_optimizer", _switch),
        "zero_stage": plugin.setting("zero_stage", _stage),
        "gradient_clipping": plugin.setting("gradient_clipping", _number),
        steps: plugin.setting(steps, _count),
    }
    device = plugin.setting("offload_optimizer_device", _device)
    if device.value is not None:
        values["offload_optimizer"] = Setting(device.value != "none")
    name = str(plugin.content.get("deepspeed_config_file") or "")
    return [values, *_of_named_file(name, where)]


def _of_named_file(name: str, where: Path) -> list[Values]:
    """What the DeepSpeed configuration decides that another file names: relative to the working
    directory or to that file."""
    for file in (Path(name), where.parent / name) if name else ():
        if os.path.isfile(file):
            return [of_deepspeed(_settings_in(file, "JSON"), file)]
    if name:
        warn(f"{where} names {short(name)}, which is not there: its settings are not known")
    return []


Parser = Callable[[str, Any], Any]
"""The value of a setting with a name. Raises ValueError, with the name, for any other."""


@dataclass(frozen=True)
class _SettingsPart:
    """A file of settings, or a section of it."""

    content: Mapping[str, Any]
    where: Path

    def setting(self, name: str, parse: Parser, default: Any = None) -> Setting:
        """A setting; the file may leave it open, or it has its default."""
        value = self.content.get(name)
        if value == AUTO:
            return Setting(None, AUTO)
        if value is None:
            return Setting(default, "" if default is None else DEFAULT)
        try:
            return Setting(parse(name, value))
        except ValueError as error:
            raise UserError(f"{self.where}: {error}") from None

    def part(self, name: str) -> _SettingsPart:
        """A section; empty if it is missing."""
        section = self.content.get(name)
        if section in (None, AUTO):
            return _SettingsPart({}, self.where)
        if not isinstance(section, Mapping):
            raise UserError(f"{self.where}: {name} is not an object with settings")
        return _SettingsPart(section, self.where)

    def refuse_others(self, keys: Sequence[str], kind: str) -> None:
        """Raise UserError for a file with none of these keys, or with one that is almost one."""
        self.refuse_typos(keys)
        if self.content and not set(keys) & set(self.content):
            raise UserError(f"{self.where} is not {kind}: it has none of {', '.join(keys)}")

    def refuse_typos(self, keys: Sequence[str]) -> None:
        """Raise UserError for a key that looks like a typing error of one that is read."""
        for key in self.content:
            close = difflib.get_close_matches(str(key), keys, n=1, cutoff=CLOSE)
            if close and key not in keys:
                raise UserError(f"{self.where}: no key '{key}': did you mean {close[0]}?")


def _number(name: str, value: Any) -> float:
    """A number; a text with a number counts, as in YAML."""
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{name} is {value!r}, not a number")
    return int(number) if number.is_integer() else number


def _positive(name: str, value: Any) -> float:
    if (number := _number(name, value)) < 0:
        raise ValueError(f"{name} is {value}: write 0 or more")
    return number


def _count(name: str, value: Any, first: float = 1, last: float = math.inf) -> int:
    """A whole number from the first limit to the last, as the library takes no other."""
    number = _number(name, value)
    if not (isinstance(number, int) and first <= number <= last):
        ending = " or more" if last == math.inf else f" to {last}"
        raise ValueError(f"{name} is {number}: write a whole number, {first}{ending}")
    return number


_stage = partial(_count, first=0, last=3)
"""A stage of ZeRO."""


def _word(name: str, value: Any, choices: Sequence[str]) -> str:
    """One of these words; YAML reads ``no`` as false."""
    word = "no" if value is False else str(value).lower()
    if word not in choices:
        raise ValueError(unknown(name, str(value), choices))
    return word


_device = partial(_word, choices=DEVICES)


def _switch(name: str, value: Any) -> bool:
    """Whether something is on; the texts true and false count, as in YAML."""
    state = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    if state is None:
        raise ValueError(f"{name} is {value!r}, not true or false")
    return state


def _settings_in(file: Path, kind: str) -> Mapping[str, Any]:
    """The settings in a file of JSON or YAML."""
    content = content_of(str(file), read_file(file).text, kind)
    if not isinstance(content, dict):
        raise UserError(f"{file} is not an object with settings, but other {kind}")
    return content
