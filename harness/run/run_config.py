"""A composed configuration -> one typed, checked RunConfig. Does not import Hydra."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from harness.bugs import catalog
from harness.bugs.api.spec import BUGGY, FIXED, RELEASED
from harness.bugs.pins import TORCH, Interpreter
from harness.releases import patches, sources, torches
from harness.system import machine
from harness.system.days import past_day
from harness.system.errors import UserError, unknown

LANES = ("auto", "cpu", "gpu")
ALL = catalog.ALL
LARGEST_SEED = 2**31 - 1
"""numpy accepts seeds below 2**32, and scenarios add a small number to theirs."""
AUTO = "auto"
"""The value of a pin that the user did not set."""


@dataclass
class LaunchConfig:
    """How trials are launched. The choices of ``lane`` are ``configs/lane/*.yaml``."""

    lane: str = "auto"
    timeout: float = 300.0
    """Seconds after which a trial is ended and its stacks are kept."""
    threads: int = 1
    """Threads of each rank on the CPU."""
    sharing: int = 1
    """How many trials may share a GPU at the same time, each with ranks on different GPUs."""
    warm: bool = True
    """Whether trials are forked from processes that have imported torch and upstream (Linux).
    False: each is a torchrun of its own."""


LOCAL, SLURM = "local", "slurm"
HERE, TASK = "here", "task"
"""The values of ``OnConfig.overlays``."""


@dataclass
class OnConfig:
    """Where runs go. The choices of ``where`` are ``configs/on/*.yaml``; the other keys are about
    Slurm."""

    where: str = LOCAL
    partition: str | None = None
    account: str | None = None
    constraint: str | None = None
    time: int = 30
    """Minutes that a task may take."""
    cpus: int | None = None
    """Cores of a task; null: one for each thread of its ranks."""
    gpus: int | None = None
    """GPUs of a task, and the gpu lane; null: with lane=gpu one for each rank, otherwise none."""
    most: int = 64
    """Tasks that run at the same time."""
    array: int = 1000
    """Tasks in one array, at most Slurm's MaxArraySize."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Further options of sbatch, without dashes: +on.extra.qos=debug +on.extra.exclusive=true."""
    overlays: str = HERE
    """Who makes the overlays: here, the machine that submits; task, each task its own, for many
    overlays and nodes with a network."""


@dataclass
class Schema:
    """The types of ``configs/config.yaml``."""

    variant: Any = None
    """A variant, or a list of these; null: see ``configs/config.yaml``."""
    seed: int = 0
    date: str | None = None
    runs: str = "runs"
    jobs: int | None = None
    strict: bool = False
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    on: OnConfig = field(default_factory=OnConfig)
    scenario: Any = None
    pins: dict[str, str] = field(default_factory=dict)
    patch: Any = None
    """A file with a unified diff, or a list of these."""


@dataclass(frozen=True)
class DetectorConfig:
    """A class that watches a training."""

    name: str
    """As it was asked for."""
    module: str
    kind: str
    """The class."""
    root: str
    """The folder that must be on the path to import the module; empty if it is there."""


@dataclass(frozen=True)
class RunConfig:
    """The settings of one run, checked."""

    scenario: str
    params: Any
    """The scenario's own ``Params``."""
    variants: tuple[str, ...]
    seed: int
    pins: Mapping[str, str]
    """The pins that the user set; the others are the scenario's."""
    date: str | None
    launch: LaunchConfig
    runs: Path
    command: str
    """The command that runs this again."""
    jobs: int | None = None
    """How many scenarios run at the same time; None for as many as the machine has room for."""
    strict: bool = False
    """Whether an unsupported scenario among several is a failure."""
    on: OnConfig = field(default_factory=OnConfig)
    installed: Interpreter | None = None
    """The interpreter whose packages are run instead of overlays, as ``check`` does."""
    patches: tuple[str, ...] = ()
    """Unified diffs that are applied to the packages of every overlay."""
    compared: bool = False
    """Whether a source or patches are compared with releases: the user has chosen no variant."""
    detectors: tuple[DetectorConfig, ...] = ()
    """The detectors that are attached to the training on each rank, as ``score`` does."""
    together: tuple[str, ...] = ()
    """The scenarios that run on the same installed packages: one server imports for all of them."""


def read(config: DictConfig, scenario: str, overrides: Sequence[str]) -> RunConfig:
    """The RunConfig of a composed configuration. Raises UserError for what Hydra cannot check."""
    launch = LaunchConfig(**{f.name: config.launch[f.name] for f in fields(LaunchConfig)})
    # On other systems, forking a process with torch is unsafe, or its child may outlive us.
    launch.warm = launch.warm and sys.platform == "linux"
    if launch.lane not in LANES:
        raise UserError(unknown("lane", launch.lane, LANES))
    if not 0 < launch.timeout < math.inf or launch.threads < 1 or launch.sharing < 1:
        raise UserError("launch.timeout, threads and sharing must be above 0 and finite")
    if not 0 <= config.seed <= LARGEST_SEED:
        raise UserError(f"seed={config.seed}: choose one from 0 to {LARGEST_SEED}")
    if config.jobs is not None and config.jobs < 1:
        raise UserError(f"jobs={config.jobs}: choose 1 or more, or omit it")
    if not config.runs.strip():
        raise UserError(f"runs={config.runs} is not a folder: set runs=DIR or HARNESS_RUNS=DIR")
    runs = Path(config.runs).absolute()
    machine.refuse_unless_on_a_path(runs, "runs")
    on = _on(config, launch)
    default = catalog.scenario(scenario).pins
    chosen = {name: v for name, v in config.pins.items() if v != AUTO and name in default}
    patch = [config.patch] if isinstance(config.patch, str) else config.patch or []
    has_changes = bool(patch) or any(map(sources.is_one, chosen.values()))
    usual = [RELEASED] if has_changes else [BUGGY, FIXED]
    variants = _variants(scenario, usual if config.variant is None else config.variant)
    pins = _with_torch({name: _release(name, v) for name, v in chosen.items()}, default)
    _refuse_unread_pins(scenario, variants, pins)
    try:
        params = OmegaConf.to_object(config.scenario)
    except ValueError as error:  # from Params
        raise UserError(str(error)) from None
    try:
        date = past_day(config.date).isoformat() if config.date is not None else None
    except ValueError as error:
        raise UserError(f"date={error}") from None
    return RunConfig(
        scenario=scenario,
        params=params,
        variants=variants,
        seed=config.seed,
        pins=pins,
        date=date,
        launch=launch,
        runs=runs,
        command=" ".join(["python -m harness run", *overrides]),
        jobs=config.jobs,
        strict=config.strict,
        on=on,
        patches=tuple(patches.read(str(file)) for file in patch),
        compared=has_changes and config.variant is None,
    )


def _on(config: DictConfig, launch: LaunchConfig) -> OnConfig:
    """Where runs go. On Slurm the lane is decided here, as this machine may have no GPU."""
    on = OnConfig(**{f.name: config.on[f.name] for f in fields(OnConfig)})
    on.extra = dict(on.extra)
    if on.where == LOCAL:
        for name in (f.name for f in fields(OnConfig) if getattr(on, f.name) != _HERE[f.name]):
            raise UserError(f"on.{name} has no effect on this machine: add on=slurm")
        return on
    if on.where != SLURM:
        raise UserError(unknown("place to run", on.where, (LOCAL, SLURM)))
    if on.overlays not in (HERE, TASK):
        raise UserError(unknown("maker of overlays", on.overlays, (HERE, TASK)))
    for name, least in (("time", 1), ("most", 1), ("array", 1), ("cpus", 1), ("gpus", 1)):
        if (value := getattr(on, name)) is not None and value < least:
            raise UserError(f"on.{name}={value}: choose {least} or more, or omit it")
    if config.jobs is not None:
        raise UserError("jobs has no effect with on=slurm: on.most limits what runs at once")
    if on.gpus and launch.lane == "cpu":
        raise UserError("on.gpus has no effect with lane=cpu: leave one of them out")
    if launch.lane == "auto":
        launch.lane = "gpu" if on.gpus else "cpu"
    return on


_HERE = vars(OnConfig())


def _release(name: str, value: str) -> str:
    """The release that a pin names, or the version of its source."""
    if not sources.is_one(value):
        return value
    if name == TORCH:
        raise UserError(f"pins.{TORCH}={value}: torch cannot be a checkout; install a build of it")
    return sources.pinned(name, value, machine.cache_folder())


def _with_torch(pins: dict[str, str], default: Iterable[str]) -> dict[str, str]:
    """The pins; with the installed release of torch, if the scenario pins torch and the user does
    not."""
    installed = torches.installed()
    if TORCH not in default or installed is None:
        return pins
    release = pins.get(TORCH, torches.INSTALLED)
    return pins | {TORCH: installed if release == torches.INSTALLED else release}


def _refuse_unread_pins(scenario: str, variants: Iterable[str], pins: Iterable[str]) -> None:
    """Refuse a pin that every chosen variant overrides with its own release."""
    pins_of = catalog.scenario(scenario).pins_of
    quoted = " and ".join(f"variant '{variant}'" for variant in variants)
    for name in pins:
        if all(name in pins_of(variant) for variant in variants):
            raise UserError(
                f"pins.{name} has no effect: {quoted} has its own release of {name}. "
                f"To test another release, use variant={RELEASED}"
            )


def _variants(scenario: str, setting: Any) -> tuple[str, ...]:
    choices = tuple(catalog.scenario(scenario).variants)
    names = list(setting) if isinstance(setting, (list, ListConfig)) else [str(setting)]
    if ALL in names:
        return choices
    for name in names:
        if name not in (*choices, RELEASED):
            raise UserError(unknown("variant", str(name), [*choices, RELEASED, ALL]))
    if not names:
        raise UserError(f"variant is empty. Choices: {', '.join([*choices, RELEASED, ALL])}.")
    return tuple(dict.fromkeys(names))
