"""run a scenario's variants and print the verdict

    python -m harness run scenario=bf16_clip
    python -m harness run scenario=bf16_clip scenario.lr=0.5 variant=all lane=gpu seed=3
    python -m harness run scenario=all
    python -m harness run --multirun scenario=bf16_clip seed=0,1,2
    python -m harness run scenario=accelerate pins.accelerate=../accelerate   # a checkout, or @REF
    python -m harness run scenario=sampler_shards patch=fix.diff              # does it fix the bug?

scenario=PACKAGE is all bugs of a package. The exit code is 1 if a bug is back that the newest
release does not have. The overrides are Hydra's; scenario=NAME --help shows those of a scenario.
"""

from __future__ import annotations

from harness.cli import Arguments
from harness.run import branch, command_line
from harness.run.executor import run_selected
from harness.run.run_config import SLURM
from harness.system.errors import ExitCode


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="a setting")
    parser.add_argument(
        "--multirun", "-m", action="store_true", help="run each combination of KEY=A,B"
    )
    about = "print the configuration instead of running it"
    parser.add_argument("--cfg", "-c", choices=["job"], help=about)
    if {"-h", "--help"} & set(arguments):
        words = [word for word in arguments if not word.startswith("-")]
        print(f"{parser.format_help()}\n{command_line.description(words)}")
        return ExitCode.AS_EXPECTED
    options = parser.parse_intermixed_args(arguments)
    words = options.overrides
    if options.cfg:
        print(command_line.as_yaml(words))
        return ExitCode.AS_EXPECTED
    if not options.multirun and branch.is_requested(words):
        return branch.judge(words)
    combinations = command_line.combinations(words) if options.multirun else [words]
    runs = [command_line.selected(combination) for combination in combinations]
    if runs[0][0].on.where == SLURM:
        runs = [[config for configs in runs for config in configs]]  # all go together
    return ExitCode.worst(map(run_selected, runs))
