"""Probes scripts, such as the loops of this project, with the packages of an overlay."""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from harness.run.server_pool import Pool
from harness.system.files import ROOT
from harness.system.machine import cache_folder, gpus_of, leased, own_folder
from harness.training.probe.answers import Answers
from harness.training.probe.compare.comparison import Compared
from harness.training.probe.layouts import Settings
from harness.training.probe.questions import probe
from harness.training.probe.runner import Runner, room
from harness.training.probe.target import Target

TIMEOUT = 120.0
"""Seconds for one layout."""


FOLDER = ROOT / "loops"
"""Right training loops, one for each stack, as the stack's documentation teaches it. One script
serves many bugs through its arguments; those that it is always given are in ``usual.json``."""


USUAL: Mapping[str, Mapping[str, Any]] = json.loads((FOLDER / "usual.json").read_text("utf-8"))
"""By the name of a script: its ``arguments``; those with which it saves and resumes; ``same_rows``
if its ranks are stages or parts of a model."""


@dataclass(frozen=True)
class Loop:
    """One of our loops with arguments of its own, and the layouts to run it in."""

    script: str
    arguments: str = ""
    """Beside those that the script is always given."""
    layouts: tuple[str, ...] = ()
    """Empty for all; a resume only if the script can."""
    relations: tuple[str, ...] = ()
    """Of the script's model. Then no layouts are run, unless some are named."""
    steps: int = 4
    at: int = 2
    ranks: int = 2
    k: int = 3
    rows: int = 12
    other_seed: str = ""
    on_gpus: int = 0
    """How many ranks need a place on a GPU, as their kernels do."""

    def settings(self) -> Settings:
        usual = USUAL[self.script]
        names = {each.name for each in fields(Settings)} & {each.name for each in fields(self)}
        return Settings(
            save=usual.get("save"),
            resume=usual.get("resume"),
            same_rows=usual.get("same_rows", False),
            **{name: getattr(self, name) for name in names},
        )

    def target(self) -> Target:
        arguments = " ".join([USUAL[self.script]["arguments"], self.arguments])
        return Target(str(FOLDER / self.script), tuple(shlex.split(arguments)))

    @property
    def name(self) -> str:
        return f"{self.script} {self.arguments}".strip()


@dataclass(frozen=True)
class Prober:
    """Probes scripts with the packages of ``site``, then those of this Python; and compares them
    with those of ``other``, if there is one."""

    pool: Pool
    site: Path | None = None
    other: Path | None = None
    environments: Sequence[tuple[str, str]] = ()
    """Instead of these: one or two interpreters, each with the folders of packages that come before
    its own."""
    timeout: float = TIMEOUT
    gpus: tuple[str, ...] = ()
    """The numbers of those to use."""
    as_written: bool = False
    report: Callable[[Compared], None] = lambda _: None
    """Is called with each layout, as soon as it is compared."""

    def __call__(self, loop: Loop, words: Sequence[str] = ()) -> Answers:
        """Probe a loop; ``words`` are further arguments. Raises Inconclusive without an answer."""
        target = loop.target()
        return self.probe(replace(target, arguments=(*target.arguments, *words)), loop.settings())

    def probe(self, target: Target, settings: Settings) -> Answers:
        """Probe any script. Raises Inconclusive without an answer."""
        sites = [self.site, *([self.other] if self.other else [])]
        environments = self.environments or [(sys.executable, str(site or "")) for site in sites]
        with (
            tempfile.TemporaryDirectory(
                prefix="probe-", dir=room(target, settings), ignore_cleanup_errors=True
            ) as folder,
            ExitStack() as stack,
        ):
            runners = []
            for number, (python, site) in enumerate(environments):
                place, options = Path(folder, str(number)), (site, self.gpus, self.as_written)
                runner = Runner(target, settings, place, python, self.timeout, self.pool, *options)
                runners.append(stack.enter_context(runner))
            return probe(runners[0], settings, self.report, *runners[1:])


@contextmanager
def leased_gpus(count: int) -> Iterator[tuple[str, ...]]:
    """The numbers of GPUs that no other run of this harness uses, for so many ranks; none if
    ``count`` is 0."""
    if not count:
        yield ()
        return
    folder = own_folder(cache_folder(), "gpus")
    with leased(gpus_of(count), folder, lambda: time.sleep(1)) as gpus:
        yield tuple(gpu.number for gpu in gpus)
