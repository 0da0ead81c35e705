"""run a scenario's variants and print the verdict

    python -m harness run scenario=bf16_clip
    python -m harness run scenario=bf16_clip scenario.lr=0.5 variant=all lane=gpu seed=3
    python -m harness run scenario=all
    python -m harness run scenario=accelerate pins.accelerate=../accelerate   # a checkout, or @REF
    python -m harness run scenario=sampler_shards patch=fix.diff              # does it fix the bug?

scenario=PACKAGE is all bugs of a package. The exit code is 1 if a bug is back that the newest
release does not have. The arguments are Hydra's: overrides, --multirun, --cfg job, --help.
"""

from __future__ import annotations

from harness.run import branch, command_line
from harness.run.executor import run_selected
from harness.run.run_config import SLURM, RunConfig
from harness.system.errors import ExitCode


def main(arguments: list[str]) -> int:
    if branch.is_requested(arguments):
        return branch.judge(arguments)
    codes: list[int] = []
    for_slurm: list[RunConfig] = []

    def job(configs: list[RunConfig]) -> None:
        if configs[0].on.where == SLURM:
            for_slurm.extend(configs)  # the combinations of --multirun go together
        else:
            codes.append(run_selected(configs))

    command_line.run(arguments, job)
    if for_slurm:
        codes.append(run_selected(for_slurm))
    return ExitCode.worst(codes)
