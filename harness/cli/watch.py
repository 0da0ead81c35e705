"""run every night: test new upstream releases, and run our own scenarios

    python -m harness watch
    python -m harness watch scenario=rope_zero_init,bf16_clip --summary night.md
    python -m harness watch --source accelerate=../accelerate@main

--source also tests a checkout, so a regression is reported before it is released.

Overrides are as for run: scenario=A,B (default: all), lane=cpu, runs=DIR, jobs=N, on=slurm. The
exit code is 1 if something got worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.bugs import catalog
from harness.cli import Arguments, scenarios_in
from harness.cli._values import file_in_a_folder, output_file, refuse_overwriting
from harness.publish import report
from harness.publish.history import writing
from harness.publish.steps import Watch, read_index, today, watch
from harness.releases import sources
from harness.releases.sources import Source
from harness.run import command_line
from harness.run.run_config import RunConfig
from harness.system.errors import UserError, unknown
from harness.system.installation import refuse_without_torch
from harness.system.machine import cache_folder
from harness.system.terminal import terminal
from harness.system.text import count

KEYS = ("scenario", "lane", "launch.timeout", "launch.threads", "launch.warm", "runs", "jobs", "on")
"""The possible overrides. With others, nightlies could not be compared."""


def main(arguments: list[str]) -> int:
    parser = Arguments(__name__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as to run")
    parser.add_argument(
        "--history",
        type=file_in_a_folder,
        default=Path("history.jsonl"),
        metavar="FILE",
        help="the file with all nightlies (default: %(default)s)",
    )
    parser.add_argument("--summary", type=output_file, metavar="FILE", help="write Markdown")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write JSON")
    parser.add_argument(
        "--source",
        action="append",
        default=[],
        metavar="NAME=FOLDER@REF",
        help="also test this checkout of a package; repeatable",
    )
    options = parser.parse_intermixed_args(arguments)
    refuse_overwriting((options.summary, options.json, options.history))
    files: dict[report.Make, Path | None] = {
        report.markdown: options.summary,
        report.as_json: options.json,
    }
    configs = configs_of(options.overrides)
    refuse_without_torch("watch")
    checkouts = [_source(word) for word in options.source]
    console, night = terminal(), today()
    with writing(options.history) as history:
        index = read_index(configs, console)
        names = count(len(configs), "scenario") if len(configs) > 1 else configs[0].scenario
        console.print(f"nightly of {night}: {names}", style="bold")
        for source in checkouts:
            console.print(str(source))
        nightly = Watch(history, night, configs, index, console, checkouts)
        watch(nightly)
        report.show(console, nightly)
    report.write(nightly, files)
    return nightly.exit_code


def _source(word: str) -> Source:
    """The source that ``--source NAME=FOLDER@REF`` names; it is built if it was not built yet."""
    name, _, value = word.partition("=")
    if name not in (packages := catalog.subjects()):
        raise UserError(unknown("package with bugs", name, packages))
    if not sources.is_one(value):
        raise UserError(f"--source {word}: name a checkout, such as {name}=../{name}@main")
    return sources.of(name, sources.pinned(name, value, cache_folder()), cache_folder())


def configs_of(words: Sequence[str]) -> list[RunConfig]:
    """A config for each named scenario, or for all of them."""
    for word in words:
        key = word.partition("=")[0]
        if key not in KEYS and not key.startswith("on."):
            raise UserError(unknown("override of watch", key, KEYS))
    selection, others = scenarios_in(words)
    return command_line.compose_each(selection or catalog.names(), others)
