"""Save and load DeepSpeed's curriculum sampler: do the same batches come as without a stop?

Needs torch and deepspeed (before 0.14.1 also oneCCL), no GPU. Exit code 3 if the bug is there."""

import os
import shutil
import tempfile
from copy import deepcopy
from typing import Any

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29609"}
import deepspeed
from deepspeed.runtime.data_pipeline.data_sampling import data_sampler

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # do not compile it for this
deepspeed.init_distributed("gloo")


def sampler(folder: str) -> Any:
    metric: Any = {"min_difficulty": 1, "max_difficulty": 9, "schedule_type": "fixed_linear"}
    metric |= {"difficulty_type": "value", "clustering_type": "single_cluster"}
    metric["schedule_config"] = {"total_curriculum_step": 100, "difficulty_step": 1}
    learning = {"enabled": True, "data_cluster_path": folder, "curriculum_metrics": {"m": metric}}
    sampling = {"enabled": True, "num_epochs": 10, "curriculum_learning": learning}
    config, group = {"seed": 1, "data_sampling": sampling}, deepspeed.comm.new_group([0])
    return data_sampler.DeepSpeedDataSampler(config, 12, 2, 0, 1, group, 1, 0)


straight, resumed = sampler(first := tempfile.mkdtemp()), sampler(second := tempfile.mkdtemp())
batches = [batch for _, batch in zip(range(4), iter(straight), strict=False)]
shutil.copytree(first, second, dirs_exist_ok=True)  # the sampler rewrites it in each epoch
resumed.load_state_dict(deepcopy(straight.state_dict()))
right, came = (
    [set(batch) for _, batch in zip(range(8), it, strict=False)] for it in (straight, resumed)
)
equal = sum(map(set.__eq__, right, came))
print(f"deepspeed {deepspeed.__version__}: {equal} of 8 batches after a resume are the right ones")
print("WRONG: other batches come" if equal < 8 else "right: the same batches come")
raise SystemExit(3 if equal < 8 else 0)
