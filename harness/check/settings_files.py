"""Read the settings of a training run, ``SETTINGS`` in ``api.settings``, from its files.

A file may leave a setting open: with a value of ``auto``, or because the script chooses it.
"""

from __future__ import annotations

import difflib
import math
import os.path
from collections.abc import Iterable, Mapping, Sequence
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
STAGES = (0, 3)
"""The first and the last stage of ZeRO."""
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
    _refuse_others(content, where, DEEPSPEED, "a DeepSpeed configuration")
    fp16, bf16 = _part(content, "fp16", where), _part(content, "bf16", where)
    for part in (fp16, bf16):
        _refuse_typos(part, ("enabled", "loss_scale"), where)
    zero, tensor = (
        _part(content, name, where) for name in ("zero_optimization", "tensor_parallel")
    )
    scheduler = _part(content, "scheduler", where).get("type")
    optimizer = _part(content, "optimizer", where).get("type")
    checkpoints = _part(content, "activation_checkpointing", where)
    scale = _number(fp16, "loss_scale", where, default=0, least=0).value
    return {
        "precision": _precision(fp16.get("enabled", False), bf16.get("enabled", False), where),
        "dynamic_loss_scale": Setting(None, AUTO) if scale is None else Setting(scale == 0),
        "zero_stage": _count(zero, "stage", where, default=0, limits=STAGES),
        "gradient_clipping": _number(content, "gradient_clipping", where, default=0),
        "gradient_accumulation_steps": _accumulation(content, where),
        "tensor_parallel": _count(tensor, "autotp_size", where, limits=(0, math.inf)),
        "warmup_of_deepspeed": Setting(
            None if scheduler is None else str(scheduler).startswith("Warmup")
        ),
        "muon_of_deepspeed": Setting(
            None if optimizer is None else str(optimizer).lower() == "muon"
        ),
        "offload_optimizer": _offload(zero, where),
        "contiguous_gradients": _switch(zero, "contiguous_gradients", where, default=True),
        "partition_activations": _switch(checkpoints, "partition_activations", where),
        "curriculum_learning": _curriculum(content, where),
    }


def _offload(zero: Mapping[str, Any], where: Path) -> Setting:
    """Whether the optimizer is on the CPU or on a disk; old configurations have ``cpu_offload``."""
    part = _part(zero, "offload_optimizer", where)
    if not part:
        return _switch(zero, "cpu_offload", where, default=False)
    device = _word(part, "device", where, DEVICES, default="none")
    return device if device.value is None else Setting(device.value != "none")


def _curriculum(content: Mapping[str, Any], where: Path) -> Setting:
    """Whether the data efficiency library, its sampling and its curriculum are all on."""
    part, states = content, []
    for name in ("data_efficiency", "data_sampling", "curriculum_learning"):
        part = _part(part, name, where)
        states.append(_switch(part, "enabled", where, default=False))
    return next((state for state in states if state.value is False), states[-1])


def _precision(fp16: Any, bf16: Any, where: Path) -> Setting:
    for name, value in (("fp16", fp16), ("bf16", bf16)):
        if value not in (True, False, AUTO):
            raise UserError(f"{where}: {name} is {value!r}, not true or false")
    if True in (bf16, fp16):  # 1 is true, too
        return Setting("bf16" if bf16 in (True,) else "fp16")
    return Setting(None, AUTO) if AUTO in (fp16, bf16) else Setting("fp32")


def _accumulation(content: Mapping[str, Any], where: Path) -> Setting:
    """The steps of accumulation; DeepSpeed computes them from two batch sizes and the ranks."""
    name = "gradient_accumulation_steps"
    if content.get(name) is not None:
        return _count(content, name, where)
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu")
    batch, micro = (_count(content, size, where).value for size in sizes)
    if AUTO in map(content.get, sizes):
        return Setting(None, AUTO)
    if batch is None or micro is None or batch == micro:
        return Setting(1, DEFAULT)
    return Setting(None, "DeepSpeed computes it from the number of ranks")


def _of_training_args(content: Mapping[str, Any], where: Path) -> list[Values]:
    """What the arguments of transformers' Trainer decide; a key that is missing has its default.

    Without bf16 and fp16 the model's own dtype decides, so nothing is known of the precision.
    """
    _refuse_others(content, where, TRAINER, "the Trainer's arguments")
    if "zero_optimization" in content:
        raise UserError(f"{where} is a DeepSpeed configuration: name it with --deepspeed")
    precision = _precision(content.get("fp16", False), content.get("bf16", False), where)
    values: Values = {
        "trainer": Setting(True),
        "pipeline_parallel": Setting(1, "the Trainer has no pipeline"),
        "gradient_accumulation_steps": _count(
            content, "gradient_accumulation_steps", where, default=1
        ),
        "gradient_clipping": _number(content, "max_grad_norm", where, default=1.0),
        "precision": Setting(None, "the model's") if precision.value == "fp32" else precision,
    }
    inside = content.get("deepspeed")
    if isinstance(inside, Mapping):
        return [values, of_deepspeed(inside, where)]
    if isinstance(inside, str) and (file := _file_named(inside, where)):
        return [values, of_deepspeed(_settings_in(file, "JSON"), file)]
    return [values]


def _of_accelerate(content: Mapping[str, Any], where: Path) -> list[Values]:
    """What accelerate's configuration decides."""
    _refuse_others(content, where, ACCELERATE, "accelerate's configuration")
    megatron = _part(content, "megatron_lm_config", where)
    plugin = _part(content, "deepspeed_config", where)
    precision = _word(content, "mixed_precision", where, PRECISIONS).value
    values: Values = {
        "ranks": _count(content, "num_processes", where),
        "precision": Setting(precision if precision in ("bf16", "fp16") else None),
        "tensor_parallel": _count(megatron, "megatron_lm_tp_degree", where),
        "pipeline_parallel": _count(megatron, "megatron_lm_pp_degree", where),
        "distributed_optimizer": _switch(megatron, "megatron_lm_use_distributed_optimizer", where),
        "zero_stage": _count(plugin, "zero_stage", where, limits=STAGES),
        "gradient_clipping": _number(plugin, "gradient_clipping", where),
        "gradient_accumulation_steps": _count(plugin, "gradient_accumulation_steps", where),
    }
    device = _word(plugin, "offload_optimizer_device", where, DEVICES)
    if device.value is not None:
        values["offload_optimizer"] = Setting(device.value != "none")
    file = _file_named(str(plugin.get("deepspeed_config_file") or ""), where)
    return [values, of_deepspeed(_settings_in(file, "JSON"), file)] if file else [values]


def _file_named(name: str, where: Path) -> Path | None:
    """The file that another one names: relative to the working directory or to that file."""
    files = [path for path in (Path(name), where.parent / name) if name and os.path.isfile(path)]
    if name and not files:
        warn(f"{where} names {short(name)}, which is not there: its settings are not known")
    return files[0] if files else None


def _number(
    content: Mapping[str, Any],
    name: str,
    where: Path,
    default: float | None = None,
    least: float = -math.inf,
) -> Setting:
    """Read a number; a text with a number counts, as in YAML."""
    value = content.get(name)
    if value == AUTO:
        return Setting(None, AUTO)
    if value is None:
        return Setting(default, DEFAULT if default is not None else "")
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: {name} is {value!r}, not a number") from None
    if number < least:
        raise UserError(f"{where}: {name} is {value}: write {least} or more")
    return Setting(int(number) if number.is_integer() else number)


def _count(
    content: Mapping[str, Any],
    name: str,
    where: Path,
    default: int | None = None,
    limits: tuple[float, float] = (1, math.inf),
) -> Setting:
    """Read a whole number from the first limit to the last, as the library takes no other."""
    setting, (first, last) = _number(content, name, where, default), limits
    number = setting.value
    if number is not None and not (isinstance(number, int) and first <= number <= last):
        ending = " or more" if last == math.inf else f" to {last}"
        raise UserError(f"{where}: {name} is {number}: write a whole number, {first}{ending}")
    return setting


def _word(
    content: Mapping[str, Any],
    name: str,
    where: Path,
    choices: Sequence[str],
    default: str | None = None,
) -> Setting:
    """Read one of these words; YAML reads ``no`` as false."""
    value = content.get(name)
    if value == AUTO:
        return Setting(None, AUTO)
    if value is None:
        return Setting(default)
    word = "no" if value is False else str(value).lower()
    if word not in choices:
        raise UserError(f"{where}: {unknown(name, str(value), choices)}")
    return Setting(word)


def _switch(
    content: Mapping[str, Any], name: str, where: Path, default: bool | None = None
) -> Setting:
    """Read whether something is on; the texts true and false count, as in YAML."""
    value = content.get(name)
    if value == AUTO:
        return Setting(None, AUTO)
    if value is None:
        return Setting(default, "" if default is None else DEFAULT)
    state = {"true": True, "1": True, "false": False, "0": False}.get(str(value).lower())
    if state is None:
        raise UserError(f"{where}: {name} is {value!r}, not true or false")
    return Setting(state)


def _refuse_others(content: Mapping[str, Any], where: Path, keys: Iterable[str], kind: str) -> None:
    """Raise UserError for a file with none of these keys, or with one that is almost one."""
    keys = list(keys)
    _refuse_typos(content, keys, where)
    if content and not set(keys) & set(content):
        raise UserError(f"{where} is not {kind}: it has none of {', '.join(keys)}")


def _refuse_typos(content: Mapping[str, Any], keys: Iterable[str], where: Path) -> None:
    """Raise UserError for a key that looks like a typing error of one that is read."""
    expected_keys = list(keys)
    for key in content:
        close = difflib.get_close_matches(str(key), expected_keys, n=1, cutoff=CLOSE)
        if close and key not in expected_keys:
            raise UserError(f"{where}: no key '{key}': did you mean {close[0]}?")


def _part(content: Mapping[str, Any], name: str, where: Path) -> Mapping[str, Any]:
    """A section of a file; empty if it is missing."""
    section = content.get(name)
    if section in (None, AUTO):
        return {}
    if not isinstance(section, Mapping):
        raise UserError(f"{where}: {name} is not an object with settings")
    return section


def _settings_in(file: Path, kind: str) -> Mapping[str, Any]:
    """The settings in a file of JSON or YAML."""
    content = content_of(str(file), read_file(file).text, kind)
    if not isinstance(content, dict):
        raise UserError(f"{file} is not an object with settings, but other {kind}")
    return content
