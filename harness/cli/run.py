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

from collections.abc import Sequence

from harness.cli import Arguments
from harness.run import branch, command_line
from harness.run.executor import run_selected
from harness.run.run_config import SLURM, RunConfig
from harness.system.errors import ExitCode, HarnessError


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
    combinations = command_line.combinations(words) if options.multirun else [words]
    runs = [(combination, command_line.selected(combination)) for combination in combinations]
    together = [c for _, configs in runs for c in configs if _is_sent(c)]
    runs = [(combination, configs) for combination, configs in runs if not _is_sent(configs[0])]
    return _run_each([*runs, (words, together)] if together else runs)


def _is_sent(config: RunConfig) -> bool:
    """Whether a run goes to Slurm, and with it all runs of a sweep."""
    return config.on.where == SLURM and not config.compared


def _run_each(runs: Sequence[tuple[Sequence[str], Sequence[RunConfig]]]) -> int:
    """Run all, and raise the first error only then: one combination must not end the others."""
    codes, errors = list[int](), list[HarnessError]()
    for words, configs in runs:
        try:
            compared = configs[0].compared
            codes.append(branch.judge(configs, words) if compared else run_selected(configs))
        except HarnessError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return ExitCode.worst(codes)
