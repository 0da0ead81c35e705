"""run a scenario's variants and print the verdict

    python -m harness run scenario=bf16_clip
    python -m harness run scenario=bf16_clip scenario.lr=0.5 variant=all launch=gpu seed=3
    python -m harness run scenario=all

The arguments are Hydra's: overrides, --multirun, --cfg job, --help.
"""

from __future__ import annotations

from harness.config import command_line
from harness.sweep.suite import noted_exit_codes, run_and_note
from harness.system.errors import ExitCode


def main(arguments: list[str]) -> int:
    elsewhere = any(word.startswith("hydra/launcher=") for word in arguments)
    with noted_exit_codes(shared=elsewhere) as codes:
        command_line.run(arguments, run_and_note)
    return ExitCode.worst(codes)
