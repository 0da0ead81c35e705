"""A private attribute of a library stands in one file: a release that renames it breaks one."""

from __future__ import annotations

import re

import pytest

from harness.system.files import ROOT

DETECTORS = ROOT / "harness" / "detectors"
"""Users copy one file of these: it has what it needs."""

OF_TORCH = (
    *("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_local_tensor"),
    *("require_backward_grad_sync", "_sync_gradients", "parameters_to_ignore", "stage_index"),
    *("_unsharded_param", "_unsharded_dtensor_spec", "_spmd_mesh", "_param_fqn", "_orig_size"),
    *("flat_param", "_is_flat_param", "_local_shard", "_numels_with_padding", "_inter_node_pg"),
)
OF_DEEPSPEED = (
    *("_hp_mapping", "hp_fragment_address", "ds_id", "ds_tensor", "ds_numel", "ds_persist"),
    *("_z3_optimizer", "grad_position", "fp32_partitioned_groups_flat", "tied_comms"),
    *("bit16_groups", "bf16_groups", "fp16_groups", "fp32_groups", "fp32_groups_flat"),
    *("fp32_groups_flat_partition", "fp32_groups_gradients", "single_partition_of_fp32_groups"),
)
OF_MEGATRON = (
    *("model_float16_groups", "shard_fp32_from_float16_groups", "fp32_from_float16_groups"),
    *("_get_model_param_range_map", "param_index_map", "shared_embedding_or_output_weight"),
)


@pytest.mark.parametrize("name", [*OF_TORCH, *OF_DEEPSPEED, *OF_MEGATRON])
def test_a_private_attribute_stands_in_one_file(name: str) -> None:
    word = re.compile(rf"(?<![\w.`]){name}(?!\w)|\.{name}(?!\w)")
    files = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "harness").rglob("*.py")
        if DETECTORS not in file.parents and word.search(file.read_text(encoding="utf-8"))
    }
    assert len(files) == 1
    assert all(file.startswith("harness/rank/training/") for file in files)
