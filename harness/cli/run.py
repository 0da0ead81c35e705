"""run a scenario's variants and print the verdict

    python -m harness run scenario=bf16_clip
    python -m harness run scenario=bf16_clip scenario.lr=0.5 variant=all launch=gpu seed=3
    python -m harness run scenario=all

The arguments are Hydra's: overrides, --multirun, --cfg job, --help.
"""

from __future__ import annotations

from harness.config import command_line
from harness.config.run_config import SLURM, RunConfig
from harness.sweep.executor import run_selected
from harness.system.errors import ExitCode


def main(arguments: list[str]) -> int:
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
