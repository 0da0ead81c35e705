"""Settings of a training run: which bugs they can set off, and what files say of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.bugs.api.settings import trigger
from harness.check import settings_files
from harness.python.results import Setting
from harness.system.errors import UserError


def as_settings(**decisions: Any) -> dict[str, Setting]:
    return {name: Setting(value) for name, value in decisions.items()}


def values(settings: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings that are decided, with their values."""
    return {name: setting.value for name, setting in settings.items() if setting.value is not None}


CLIP = {"precision": "bf16", "gradient_clipping": {"above": 0}, "tensor_parallel": {"above": 1}}


@pytest.mark.parametrize(
    ("settings", "met", "why"),
    [
        (
            {"precision": "bf16", "gradient_clipping": 1.0, "tensor_parallel": 2},
            True,
            "precision is bf16, gradient_clipping is 1, tensor_parallel is 2",
        ),
        ({"precision": "bf16", "gradient_clipping": 0}, False, "gradient_clipping is 0, not above"),
        ({"tensor_parallel": 1}, False, "tensor_parallel is 1, not above 1"),
        ({"precision": "fp16"}, False, "precision is fp16, not bf16"),
        (
            {"gradient_clipping": 0.5},
            None,
            "your settings do not decide precision and tensor_parallel",
        ),
        ({}, None, "do not decide precision, gradient_clipping and tensor_parallel"),
    ],
)
def test_all_conditions_must_hold_and_one_that_does_not_is_enough(
    settings: Mapping[str, Any], met: bool | None, why: str
) -> None:
    verdict = trigger(CLIP, as_settings(**settings))
    assert verdict.met is met
    assert why in verdict.why


def test_no_file_decides_what_only_the_script_decides() -> None:
    conditions = {"trainer": True, "code": "the model has tied weights"}
    assert trigger(conditions, as_settings(trainer=True)).met is None
    assert trigger(conditions, as_settings(trainer=False)).why == "trainer is off, not on"
    verdict = trigger(conditions, as_settings(trainer=True, code=True))
    assert verdict.why == "your settings do not decide whether the model has tied weights"
    verdict = trigger({}, as_settings(trainer=True))
    assert (verdict.met, verdict.why) == (None, "no setting decides whether the bug is triggered")


def test_a_note_says_why_a_setting_has_its_value_or_none() -> None:
    conditions = {"precision": "bf16", "gradient_clipping": {"above": 0}}
    verdict = trigger(conditions, {"precision": Setting(None, "auto")})
    assert verdict.why == "your settings do not decide precision (auto) and gradient_clipping"
    verdict = trigger(conditions, {"gradient_clipping": Setting(0, "its default")})
    assert verdict.why == "gradient_clipping is 0 (its default), not above 0"


def test_one_of_several_values_is_enough() -> None:
    assert trigger({"precision": ["bf16", "fp16"]}, as_settings(precision="fp16")).met is True
    assert trigger({"precision": ["bf16", "fp16"]}, as_settings(precision="fp32")).why.endswith(
        "not bf16 or fp16"
    )


def deepspeed(**content: Any) -> dict[str, Any]:
    settings = settings_files.of_deepspeed(content, Path("ds.json"))
    return {name: setting.value for name, setting in settings.items()}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, {"precision": "fp32", "zero_stage": 0, "gradient_clipping": 0}),
        ({"bf16": {"enabled": True}}, {"precision": "bf16"}),
        ({"bfloat16": {"enabled": True}}, {"precision": "bf16"}),
        ({"bf16": {"enabled": False}, "bfloat16": {"enabled": True}}, {"precision": "fp32"}),
        ({"bf16": {"enabled": "auto"}, "fp16": {"enabled": False}}, {"precision": None}),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, {"dynamic_loss_scale": False}),
        ({"fp16": {"enabled": True}}, {"precision": "fp16", "dynamic_loss_scale": True}),
        ({"gradient_clipping": "auto"}, {"gradient_clipping": None}),
        ({"zero_optimization": {"stage": 3}}, {"zero_stage": 3}),
        ({"scheduler": {"type": "WarmupDecayLR"}}, {"warmup_of_deepspeed": True}),
        ({"scheduler": {"type": "OneCycle"}}, {"warmup_of_deepspeed": False}),
        ({}, {"warmup_of_deepspeed": None, "tensor_parallel": None}),
        ({"tensor_parallel": {"autotp_size": 4}}, {"tensor_parallel": 4}),
        ({"gradient_accumulation_steps": 4}, {"gradient_accumulation_steps": 4}),
        ({"train_batch_size": 8}, {"gradient_accumulation_steps": 1}),
        ({}, {"offload_optimizer": False, "contiguous_gradients": True}),
        ({}, {"partition_activations": None, "curriculum_learning": False}),
        ({}, {"muon_of_deepspeed": None}),
        ({"optimizer": {"type": "Muon"}}, {"muon_of_deepspeed": True}),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}},
            {"offload_optimizer": True},
        ),
        (
            {"zero_optimization": {"offload_optimizer": {"device": "auto"}}},
            {"offload_optimizer": None},
        ),
        ({"zero_optimization": {"cpu_offload": True}}, {"offload_optimizer": True}),
        ({"zero_optimization": {"contiguous_gradients": False}}, {"contiguous_gradients": False}),
        ({"zero_optimization": {"contiguous_gradients": "auto"}}, {"contiguous_gradients": None}),
        (
            {"activation_checkpointing": {"partition_activations": True}},
            {"partition_activations": True},
        ),
        (
            {
                "data_efficiency": {
                    "enabled": True,
                    "data_sampling": {"enabled": True, "curriculum_learning": {"enabled": True}},
                }
            },
            {"curriculum_learning": True},
        ),
        (
            {"data_efficiency": {"enabled": True, "data_sampling": {"enabled": True}}},
            {"curriculum_learning": False},
        ),
    ],
)
def test_a_deepspeed_configuration_decides_what_it_names_and_its_defaults(
    content: dict[str, Any], expected: dict[str, Any]
) -> None:
    settings = deepspeed(**content)
    assert {name: settings[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("batch", "micro", "steps"),
    [(8, 8, 1), (8, 4, None), ("auto", "auto", None), ("auto", 4, None), (None, 4, 1)],
)
def test_batch_sizes_decide_the_accumulation_only_if_the_ranks_do_not_matter(
    batch: Any, micro: Any, steps: int | None
) -> None:
    settings = deepspeed(train_batch_size=batch, train_micro_batch_size_per_gpu=micro)
    assert settings["gradient_accumulation_steps"] == steps


def written(folder: Path, name: str, content: Any) -> Path:
    file = folder / name
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def test_training_arguments_fill_in_what_deepspeed_leaves_to_them(tmp_path: Path) -> None:
    config = {"bf16": {"enabled": "auto"}, "gradient_accumulation_steps": "auto"}
    written(tmp_path, "ds.json", config)
    args = {"bf16": True, "gradient_accumulation_steps": 4, "deepspeed": "ds.json"}
    settings = values(settings_files.read(training_args=written(tmp_path, "args.json", args)))
    assert settings["precision"] == "bf16"
    assert settings["gradient_accumulation_steps"] == 4
    assert settings["trainer"] is True


def test_missing_training_arguments_have_their_defaults_and_fp32_is_not_certain(
    tmp_path: Path,
) -> None:
    file = written(tmp_path, "args.json", {"output_dir": "out"})
    settings = values(settings_files.read(training_args=file))
    assert settings["gradient_accumulation_steps"] == 1
    assert settings["gradient_clipping"] == 1
    assert "precision" not in settings


def test_accelerates_yaml_decides_ranks_precision_and_parallelism(tmp_path: Path) -> None:
    text = """
num_processes: 8
mixed_precision: bf16
megatron_lm_config: {megatron_lm_tp_degree: '2', megatron_lm_pp_degree: 1}
deepspeed_config: {gradient_clipping: auto, zero_stage: 2}
"""
    always, megatron = {"ranks": 8, "precision": "bf16"}, {"tensor_parallel": 2}
    megatron |= {"pipeline_parallel": 1}
    for kind, others in {
        "": {**megatron, "zero_stage": 2},
        "distributed_type: DEEPSPEED": {"zero_stage": 2},
        "distributed_type: MEGATRON_LM": megatron,
        "distributed_type: FSDP": {},  # the tables of another kind are left over
    }.items():
        file = written(tmp_path, "a.yaml", text + kind)
        assert values(settings_files.read(accelerate=file)) == always | others


@pytest.mark.parametrize(
    ("value", "expected"), [(True, True), ("true", True), ("False", False), (None, None)]
)
def test_a_switch_of_megatron_is_true_or_false(tmp_path: Path, value: Any, expected: Any) -> None:
    content = {"megatron_lm_config": {"megatron_lm_use_distributed_optimizer": value}}
    settings = settings_files.read(accelerate=written(tmp_path, "a.yaml", content))
    assert settings["distributed_optimizer"].value is expected


@pytest.mark.parametrize(
    ("kind", "content", "message"),
    [
        (
            "deepspeed",
            {"zero_optimization": {"stage": 9}},
            "stage is 9: write a whole number, 0 to 3",
        ),
        ("deepspeed", {"zero_optimization": {"stage": -1}}, "stage is -1: "),
        ("deepspeed", {"zero_optimization": {"stage": 1.5}}, "stage is 1.5: "),
        ("deepspeed", {"zero_optimization": {"stage": True}}, "stage is True, not a number"),
        (
            "deepspeed",
            {"zero_optimization": {"offload_optimizer": {"device": "gpu"}}},
            "no device 'gpu': did you mean cpu? Choices: none, cpu, nvme",
        ),
        ("deepspeed", {"fp16": {"loss_scale": -1}}, "loss_scale is -1: write 0 or more"),
        ("deepspeed", {"tensor_parallel": {"autotp_size": -1}}, "0 or more"),
        ("deepspeed", {"gradient_accumulation_steps": 0}, "is 0: write a whole number, 1 or more"),
        ("deepspeed", {"train_batch_size": 0}, "train_batch_size is 0: "),
        ("training_args", {"gradient_accumulation_steps": 1.5}, "is 1.5: write a whole number"),
        ("accelerate", {"num_processes": 0}, "num_processes is 0: "),
        ("accelerate", {"mixed_precision": "bf61"}, "no mixed_precision 'bf61': did you mean bf16"),
        ("accelerate", {"megatron_lm_config": {"megatron_lm_pp_degree": 0}}, "1 or more"),
        ("accelerate", {"deepspeed_config": {"zero_stage": 4}}, "zero_stage is 4: "),
        (
            "accelerate",
            {"deepspeed_config": {"offload_optimizer_device": "disk"}},
            "no offload_optimizer_device 'disk'",
        ),
        ("deepspeed", "[1, 2]", "is not an object with settings, but other JSON"),
        ("deepspeed", "{", "is not valid JSON"),
        ("deepspeed", {"bf16": True}, "bf16 is not an object with settings"),
        ("deepspeed", {"gradient_clipping": "much"}, "gradient_clipping is 'much', not a number"),
        (
            "deepspeed",
            {"gradient_clip": 1, "gradient_cliping": 1},
            "no key 'gradient_cliping': did you mean",
        ),
        ("deepspeed", {"fp16": {"enable": True}}, "no key 'enable': did you mean enabled"),
        ("deepspeed", {"fp16": {"enabled": 1.5}}, "fp16 is 1.5, not true or false"),
        ("deepspeed", {"num_processes": 2}, "is not a DeepSpeed configuration: it has none of"),
        ("deepspeed", "\x80", "is not"),
        ("accelerate", "[1, 2]", "file is not"),
        ("accelerate", "a: [", "file is not"),
        ("accelerate", "just text", "file is not"),
        ("training_args", {"bf16": True, "zero_optimization": {}}, "name it with --deepspeed"),
    ],
)
def test_a_file_or_a_value_that_the_library_does_not_take_is_refused_in_one_line(
    tmp_path: Path, kind: str, content: dict[str, Any] | str, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        settings_files.read(**{kind: written(tmp_path, "file", content)})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_words_of_accelerates_yaml_count_as_accelerate_reads_them(tmp_path: Path) -> None:
    text = "mixed_precision: FP16\ndeepspeed_config: {offload_optimizer_device: none}\n"
    settings = values(settings_files.read(accelerate=written(tmp_path, "a.yaml", text)))
    assert settings == {"precision": "fp16", "offload_optimizer": False}
    text = "mixed_precision: no\n"  # false, to YAML
    assert not values(settings_files.read(accelerate=written(tmp_path, "a.yaml", text)))
    assert deepspeed(bf16={"enabled": 1})["precision"] == "bf16"


def test_files_that_disagree_decide_nothing(tmp_path: Path) -> None:
    config = written(tmp_path, "ds.json", {"gradient_accumulation_steps": 2})
    args = written(tmp_path, "args.json", {"gradient_accumulation_steps": 4})
    settings = settings_files.read(deepspeed=config, training_args=args)
    expected = Setting(None, "the files disagree: 2 and 4")
    assert settings["gradient_accumulation_steps"] == expected


DISAGREE = Setting(None, "the files disagree: 2 and 3")
OPEN, ALSO_OPEN = Setting(None, "it is not written"), Setting(None, "it is auto")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ([Setting(2), Setting(3), Setting(1)], DISAGREE),
        ([Setting(2), Setting(3), Setting(2)], DISAGREE),
        ([Setting(2), Setting(3), OPEN], DISAGREE),
        ([OPEN, ALSO_OPEN], OPEN),
        ([OPEN, ALSO_OPEN, Setting(1)], Setting(1)),
    ],
)
def test_a_third_file_decides_nothing_that_others_disagree_about_but_what_they_leave_open(
    settings: Sequence[Setting], expected: Setting
) -> None:
    assert settings_files.merged([{"zero_stage": each} for each in settings]) == {
        "zero_stage": expected
    }


@pytest.mark.parametrize("option", ["deepspeed", "training_args", "accelerate"])
def test_a_file_without_an_end_is_refused(option: str) -> None:
    with pytest.raises(UserError, match="cannot read /dev/zero: it has more than"):
        settings_files.read(**{option: Path("/dev/zero")})


def test_a_name_of_a_file_that_no_system_has_is_only_unknown(tmp_path: Path) -> None:
    (tmp_path / "args.json").write_text(json.dumps({"bf16": True, "deepspeed": "a" * 5000}))
    assert settings_files.read(training_args=tmp_path / "args.json")["trainer"].value is True
