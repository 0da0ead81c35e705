"""After a resume, rsl_rl's adaptive schedule begins again at the configured learning rate.

This affected users who stop and resume a training of rsl_rl. Its PPO adapts the learning rate to
how far an update moves the policy: by default it multiplies or divides the rate by 1.5 in each
mini-batch. After a resume the rate jumps back to that of the configuration, and must find its
value again. If the schedule had lowered it, the first updates after a resume are many times too
large and can destroy the policy; if it had raised it, as here, they do almost nothing.

Root cause: ``load`` restores the optimizer, and so its rate. But the schedule keeps a number of its
own, ``PPO.learning_rate``, which nobody restores. The first mini-batch computes the next rate from
it and writes it into the optimizer. 5.4.2 copies the optimizer's rate after a load.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from harness.bugs import api
from scenarios.common import continued

ENVIRONMENTS, OBSERVATIONS, ACTIONS, STEPS, UPDATES = 8, 4, 2, 8, 4
FACTOR = 1.5
"""By which upstream's schedule changes the rate, or not, in each update."""


def anew(steps: Sequence[api.Record], whole: Sequence[api.Record], records: api.Records) -> bool:
    """The optimizer has the rate of the checkpoint, but the first update after the resume begins
    at that of the configuration."""
    first, saved = steps[0], whole[records.params.done]
    times = math.log(first["rate"] / records.params.lr, FACTOR)
    return (
        api.near(first["before"], saved["before"], share=1e-6)
        and not api.near(first["rate"], saved["rate"], share=1e-6)
        and abs(times) < UPDATES + 0.1
        and api.near(times, round(times), within=1e-3)
    )


oracle = continued.Continued(
    anew,
    facts=lambda at: {"before": api.SIZE, "rate": api.SIZE},
    fact="rate",
    noun="learning rate",
    clock="iteration",
)


def run(ctx: api.Context) -> None:
    """Train with upstream's runner and save, and go on; or load in a new process, and go on."""
    import torch
    from rsl_rl.runners import OnPolicyRunner

    file = str(ctx.folder / "model.pt")
    torch.manual_seed(ctx.seed)
    runner = OnPolicyRunner(_environment(ctx), _configuration(ctx.params), device=str(ctx.device))
    if ctx.launch == continued.RESUMED:
        runner.load(file)
    (group,) = runner.alg.optimizer.param_groups
    for step in continued.steps(ctx):
        before = group["lr"]
        torch.manual_seed(ctx.seed + step)  # the same actions and mini-batches in both launches
        runner.learn(1)
        ctx.record("step", step, before=before, rate=group["lr"])
        if ctx.launch == continued.WHOLE and step == ctx.params.done:
            runner.save(file)


def _environment(ctx: api.Context) -> Any:
    """Environments with random observations, which reward small actions."""
    import torch
    from tensordict import TensorDict

    class Environments:
        num_envs, num_actions, max_episode_length = ENVIRONMENTS, ACTIONS, 100
        device, cfg = ctx.device, None
        episode_length_buf = torch.zeros(ENVIRONMENTS, dtype=torch.long, device=ctx.device)

        def get_observations(self) -> Any:
            rows = torch.randn(ENVIRONMENTS, OBSERVATIONS, device=ctx.device)
            return TensorDict({"policy": rows}, batch_size=[ENVIRONMENTS])

        def step(self, actions: Any) -> Any:
            ends = torch.zeros(ENVIRONMENTS, device=ctx.device)
            return self.get_observations(), -actions.square().sum(dim=1), ends, {}

    return Environments()


def _configuration(p: Any) -> dict[str, Any]:
    """The runner's configuration: upstream's defaults, with small networks."""
    network = {"class_name": "MLPModel", "hidden_dims": [8]}
    actions = {"distribution_cfg": {"class_name": "GaussianDistribution"}}
    schedule = {"schedule": p.schedule, "learning_rate": p.lr}
    counts = {"num_learning_epochs": 1, "num_mini_batches": UPDATES}
    return {
        "num_steps_per_env": STEPS,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "actor": network | actions,
        "critic": dict(network),
        "algorithm": {"class_name": "PPO", "rnd_cfg": None, **schedule, **counts},
    }
