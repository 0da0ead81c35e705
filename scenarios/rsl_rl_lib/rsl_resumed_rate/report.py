"""Load a checkpoint of rsl_rl's PPO: does its adaptive schedule go on from the saved rate?

Needs torch and rsl-rl-lib from 5.0 on, and no GPU. The exit code is 3 if the bug is there."""

from importlib.metadata import version
from typing import Any

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict

GROUPS = {"actor": ["policy"], "critic": ["policy"]}
rows = TensorDict({"policy": torch.randn(8, 4)}, batch_size=[8])


def ppo() -> Any:
    actions = {"class_name": "GaussianDistribution"}
    actor = MLPModel(rows, GROUPS, "actor", 2, [8], distribution_cfg=actions)
    storage = RolloutStorage("rl", 8, 4, rows, [2], "cpu")
    return PPO(actor, MLPModel(rows, GROUPS, "critic", 1, [8]), storage, learning_rate=1e-4)


def rate_after(algorithm: Any) -> float:
    for _ in range(4):
        rewards = -algorithm.act(rows).square().sum(dim=1)
        algorithm.process_env_step(rows, rewards, torch.zeros(8), {})
    algorithm.compute_returns(rows)
    algorithm.update()
    return float(algorithm.optimizer.param_groups[0]["lr"])


first, resumed = ppo(), ppo()
saved = [rate_after(first) for _ in range(2)][-1]
resumed.load(first.save(), None, True)
loaded = resumed.learning_rate
print(f"rsl-rl-lib {version('rsl-rl-lib')}: saved {saved:.2g}, loaded {loaded:.2g}")
print("WRONG: the schedule begins anew" if loaded != saved else "right: it goes on")
raise SystemExit(3 if loaded != saved else 0)
