"""Files with settings of a training run: what they decide of ``harness.settings.SETTINGS``.

A setting that a file does not decide is None: a value of ``auto``, or one that the script chooses.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.errors import UserError
from harness.text import warn

Values = dict[str, Any]

AUTO = "auto"
"""What a DeepSpeed configuration says where transformers or accelerate fills in the value."""


def read(
    deepspeed: Path | None = None, training_args: Path | None = None, accelerate: Path | None = None
) -> Values:
    """The settings that these files decide together. Where two disagree, neither decides.

    Raises UserError for a file that cannot be read, or that is not an object.
    """
    found = []
    if deepspeed:
        found.append(of_deepspeed(_json(deepspeed), deepspeed))
    if training_args:
        found += _of_training_args(_json(training_args), training_args)
    if accelerate:
        found += _of_accelerate(_yaml(accelerate), accelerate)
    return merged(found)


def merged(found: Iterable[Values]) -> Values:
    """The settings of several files. Where two disagree, neither decides."""
    result: Values = {}
    disputed = set()
    for values in found:
        for name, value in values.items():
            if value is None:
                continue
            if result.setdefault(name, value) != value:
                disputed.add(name)
    if disputed:
        warn(f"the files disagree on {', '.join(sorted(disputed))}: neither counts")
    return {name: value for name, value in result.items() if name not in disputed}


def of_deepspeed(content: Mapping[str, Any], where: Path) -> Values:
    """What a DeepSpeed configuration decides."""
    fp16, bf16 = _part(content, "fp16", where), _part(content, "bf16", where)
    zero = _part(content, "zero_optimization", where)
    tensor = _part(content, "tensor_parallel", where)
    scheduler = _part(content, "scheduler", where).get("type")
    scale = fp16.get("loss_scale", 0)
    return {
        "precision": _precision(fp16.get("enabled", False), bf16.get("enabled", False)),
        "dynamic_loss_scale": None if scale == AUTO else scale == 0,
        "zero_stage": _number(zero.get("stage", 0), where, "zero_optimization.stage"),
        "gradient_clipping": _number(
            content.get("gradient_clipping", 0), where, "gradient_clipping"
        ),
        "gradient_accumulation_steps": _accumulation(content, where),
        "tensor_parallel": _number(tensor.get("autotp_size"), where, "autotp_size"),
        "warmup_of_deepspeed": None if scheduler is None else str(scheduler).startswith("Warmup"),
    }


def _precision(fp16: Any, bf16: Any) -> str | None:
    if bf16 is True:
        return "bf16"
    if fp16 is True:
        return "fp16"
    return None if AUTO in (fp16, bf16) else "fp32"


def _accumulation(content: Mapping[str, Any], where: Path) -> float | None:
    """The steps of accumulation; DeepSpeed computes them from two batch sizes and the ranks."""
    given = content.get("gradient_accumulation_steps")
    if given is not None:
        return _number(given, where, "gradient_accumulation_steps")
    batch = content.get("train_batch_size")
    micro = content.get("train_micro_batch_size_per_gpu")
    if AUTO in (batch, micro):
        return None
    return 1 if batch is None or micro is None or batch == micro else None


def _of_training_args(content: Mapping[str, Any], where: Path) -> list[Values]:
    """What the arguments of transformers' Trainer decide; a key that is missing has its default.

    Without bf16 and fp16 the model's own dtype decides, so nothing is known of the precision.
    """
    values: Values = {
        "trainer": True,
        "pipeline_parallel": 1,  # the Trainer has no pipeline
        "gradient_accumulation_steps": _number(
            content.get("gradient_accumulation_steps", 1), where, "gradient_accumulation_steps"
        ),
        "gradient_clipping": _number(content.get("max_grad_norm", 1.0), where, "max_grad_norm"),
        "precision": "bf16" if content.get("bf16") else "fp16" if content.get("fp16") else None,
    }
    inside = content.get("deepspeed")
    if isinstance(inside, Mapping):
        return [values, of_deepspeed(inside, where)]
    if isinstance(inside, str) and (file := _named(inside, where)):
        return [values, of_deepspeed(_json(file), file)]
    return [values]


def _of_accelerate(content: Mapping[str, Any], where: Path) -> list[Values]:
    """What accelerate's configuration decides."""
    megatron = _part(content, "megatron_lm_config", where)
    plugin = _part(content, "deepspeed_config", where)
    precision = content.get("mixed_precision")
    values: Values = {
        "ranks": _number(content.get("num_processes"), where, "num_processes"),
        "precision": precision if precision in ("bf16", "fp16") else None,
        "tensor_parallel": _number(
            megatron.get("megatron_lm_tp_degree"), where, "megatron_lm_tp_degree"
        ),
        "pipeline_parallel": _number(
            megatron.get("megatron_lm_pp_degree"), where, "megatron_lm_pp_degree"
        ),
        "distributed_optimizer": megatron.get("megatron_lm_use_distributed_optimizer"),
        "zero_stage": _number(plugin.get("zero_stage"), where, "zero_stage"),
        "gradient_clipping": _number(plugin.get("gradient_clipping"), where, "gradient_clipping"),
        "gradient_accumulation_steps": _number(
            plugin.get("gradient_accumulation_steps"), where, "gradient_accumulation_steps"
        ),
    }
    file = _named(str(plugin.get("deepspeed_config_file") or ""), where)
    return [values, of_deepspeed(_json(file), file)] if file else [values]


def _named(name: str, where: Path) -> Path | None:
    """A file that another one names, from the working directory or from beside that one."""
    found = [path for path in (Path(name), where.parent / name) if name and path.is_file()]
    if name and not found:
        warn(f"{where} names {name}, which is not there: its settings are not known")
    return found[0] if found else None


def _number(value: Any, where: Path, name: str) -> float | None:
    """A number; None if it is not decided. A text with a number, as in YAML, is one too."""
    if value is None or value == AUTO:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"{where}: {name} is {value!r}, not a number") from None
    return int(number) if number.is_integer() else number


def _part(content: Mapping[str, Any], name: str, where: Path) -> Mapping[str, Any]:
    """A section of a file; empty if it is missing."""
    found = content.get(name)
    if found in (None, AUTO):
        return {}
    if not isinstance(found, Mapping):
        raise UserError(f"{where}: {name} is not an object with settings")
    return found


def _json(file: Path) -> Mapping[str, Any]:
    try:
        return _object(json.loads(_text(file)), file, "JSON")
    except ValueError as error:
        raise UserError(f"{file} is not valid JSON: {error}") from None


def _yaml(file: Path) -> Mapping[str, Any]:
    import yaml  # takes a tenth of a second

    try:
        return _object(yaml.safe_load(_text(file)), file, "YAML")
    except yaml.YAMLError as error:
        where = " ".join(str(error).split())
        raise UserError(f"{file} is not valid YAML: {where}") from None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{file} is not a text file") from None
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}") from None


def _object(content: Any, file: Path, kind: str) -> Mapping[str, Any]:
    if not isinstance(content, dict):
        raise UserError(f"{file} is not an object with settings, but other {kind}")
    return content
