"""Overrides -> one typed RunConfig. The only module that imports Hydra.

Hydra composes once, in the parent. Each scenario's ``Params`` is an option of the group
``scenario`` as it stands in its module, so a new scenario needs no YAML.
"""

from __future__ import annotations

import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness import catalog, machine
from harness.knobs import knobs, meaning
from harness.spec import BUGGY, FIXED, RELEASED, Scenario, UserError
from harness.text import complaint

CONFIGS = str(Path(__file__).parent.parent / "configs")
LANES = ("auto", "cpu", "gpu")
ALL = "all"
LARGEST_SEED = 2**31 - 1
"""numpy takes seeds below 2**32, torch larger ones; scenarios add to theirs: 1, or the rank."""
HELP = {"--help", "-h", "--hydra-help", "--info", "-i"}


@dataclass
class LaunchConfig:
    """How trials are launched: ``configs/launch/*.yaml``."""

    lane: str = "auto"
    timeout: float = 300.0
    threads: int = 1
    warm: bool = True


@dataclass
class Schema:
    """The types of ``configs/config.yaml``."""

    variant: Any = field(default_factory=lambda: [BUGGY, FIXED])
    seed: int = 0
    date: str | None = None
    runs: str = "runs"
    jobs: int | None = None
    strict: bool = False
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    scenario: Any = None
    pins: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunConfig:
    """All that one run is asked to do, checked."""

    scenario: str
    params: Any
    """The scenario's own ``Params``."""
    variants: tuple[str, ...]
    seed: int
    pins: Mapping[str, str]
    """The pins that the user named; the others are the scenario's."""
    date: str | None
    launch: LaunchConfig
    runs: Path
    command: str
    """What to type to run this again."""
    jobs: int | None = None
    """How many scenarios of several run side by side; None for what the machine bears."""
    strict: bool = False
    """Whether, among several scenarios, an unsupported one is a failure."""
    installed: bool = False
    """Whether to run what is installed beside torch, and no overlay: ``check`` asks for that."""


def run(arguments: Sequence[str], job: Callable[[list[RunConfig]], None]) -> None:
    """Compose ``arguments`` as a Hydra application and call ``job`` for each composed config.

    ``job`` gets one RunConfig, or for ``scenario=all`` one for each scenario.

    Everything that Hydra's command line can do works: ``--multirun``, ``--cfg``, ``--help``,
    launchers and sweepers. Raises UserError for what cannot be composed.
    """
    _register(arguments)
    here = os.getpid()
    begun = False
    refused: list[Exception] = []
    done = False
    sweep: Path | None = None

    @hydra.main(version_base="1.3", config_path=CONFIGS, config_name="config")
    def task(config: DictConfig) -> None:
        nonlocal begun, done, sweep
        begun = True
        choice = HydraConfig.get()
        if choice.mode is RunMode.MULTIRUN:
            sweep = Path(choice.sweep.dir).absolute()
        try:
            job(selected(config, choice.runtime.choices["scenario"], choice.overrides.task))
        except Exception as error:
            if os.getpid() != here:  # a launcher's own process: Hydra brings the error back
                raise
            refused.append(error)  # Hydra would print a line of its own before ours
            return
        done = True

    arguments = [quoted(a) for a in arguments]
    if HELP & set(arguments) and not any(a.startswith("scenario=") for a in arguments):
        arguments += [f"scenario={n}" for n in catalog.sound()[:1]]  # help shows one's keys
    try:
        with _as_argv(arguments), _one_line(arguments):
            task()
    except ValueError as error:  # Hydra's own, of launch=null say: of a job's it is a bug
        if begun:
            raise
        raise UserError(f"{' '.join(arguments)}: {error}") from None
    if refused and sweep and not done:
        _remove(sweep)
    if refused:
        raise refused[0]


def _remove(sweep: Path) -> None:
    """Remove the folder that Hydra made for a sweep of which nothing came, and empty ones above."""
    (sweep / "multirun.yaml").unlink(missing_ok=True)
    with suppress(OSError):
        for folder in (sweep, sweep.parent, sweep.parent.parent):
            folder.rmdir()


def compose(arguments: Sequence[str]) -> RunConfig:
    """The RunConfig of a single run's overrides, for use from Python."""
    return _composed(arguments, read)


Read = TypeVar("Read")


def _composed(
    arguments: Sequence[str], reader: Callable[[DictConfig, str, Sequence[str]], Read]
) -> Read:
    """What ``reader`` makes of the config that Hydra composes, of its scenario and overrides."""
    _register(arguments)
    arguments = [quoted(a) for a in arguments]
    with _one_line(arguments), hydra.initialize_config_dir(CONFIGS, version_base="1.3"):
        config = hydra.compose("config", overrides=list(arguments), return_hydra_config=True)
        return reader(config, config.hydra.runtime.choices["scenario"], arguments)


def compose_each(names: Iterable[str], words: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of the same overrides for several scenarios, the broken ones last.

    Hydra composes once for all of them: that takes 0.1 s.
    """
    names, lost = list(names), catalog.broken()
    sound = [name for name in names if name not in lost]
    if not sound:
        catalog.load(names[0])  # which says what is wrong with it
    if len(sound) == 1:
        found = [compose([f"scenario={sound[0]}", *words])]
    else:
        found = _composed([f"scenario={ALL}", *words], lambda *composed: _several(sound, *composed))
    return [*found, *(_unread(found[0], name) for name in names if name in lost)]


def selected(config: DictConfig, scenario: str, overrides: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of a composed config: one, or of ``scenario=all`` one for each scenario."""
    if scenario != ALL:
        return [read(config, scenario, overrides)]
    asked = config.variant
    fitting = [n for n in catalog.sound() if _has_variant(catalog.load(n).SCENARIO, asked)]
    if not fitting:
        raise UserError(f"no scenario has the variant {asked}")
    chosen = _several(fitting, config, scenario, overrides)
    return [*chosen, *(_unread(chosen[0], name) for name in catalog.broken())]


def _several(
    names: Iterable[str], config: DictConfig, _: str, overrides: Sequence[str]
) -> list[RunConfig]:
    """The RunConfigs of several scenarios, each with its own defaults."""
    _refuse_extras(config, (), ())
    others = [word for word in overrides if not word.startswith("scenario=")]
    found = []
    for name in names:
        own = config.copy()
        OmegaConf.set_struct(own, False)
        own.scenario = OmegaConf.structured(catalog.load(name).Params)
        found.append(read(own, name, [f"scenario={name}", *others]))
    return found


def _unread(other: RunConfig, name: str) -> RunConfig:
    """What stands for a broken scenario among others: to run it fails, and tells why."""
    return replace(other, scenario=name, params=None, pins={})


def _has_variant(told: Scenario, asked: Any) -> bool:
    """Whether a scenario has the one variant that was asked of all; a list must fit each."""
    return not isinstance(asked, str) or asked in (ALL, RELEASED, *told.variants)


def read(config: DictConfig, scenario: str, overrides: Sequence[str]) -> RunConfig:
    """The RunConfig of a composed config; raises UserError for what Hydra cannot check."""
    launch = LaunchConfig(**{f.name: config.launch[f.name] for f in fields(LaunchConfig)})
    # Elsewhere a process that has loaded torch cannot be forked safely, or does not end with ours.
    launch.warm = launch.warm and sys.platform == "linux"
    if launch.lane not in LANES:
        raise UserError(catalog.unknown("lane", launch.lane, LANES))
    if not 0 < launch.timeout < math.inf or launch.threads < 1:
        raise UserError("launch.timeout and launch.threads must be above zero, and finite")
    if not 0 <= config.seed <= LARGEST_SEED:
        raise UserError(f"seed={config.seed}: choose one from 0 to {LARGEST_SEED}")
    if config.jobs is not None and config.jobs < 1:
        raise UserError(f"jobs={config.jobs}: choose 1 or more, or leave it out")
    if not config.runs.strip():
        raise UserError(f"runs={config.runs} names no folder: runs=DIR, or HARNESS_RUNS=DIR")
    runs = Path(config.runs).absolute()
    machine.refuse_unless_on_a_path(runs, "runs")
    default = catalog.scenario(scenario).pins
    _refuse_extras(config, [f.name for f in fields(catalog.load(scenario).Params)], default)
    variants = _variants(scenario, config.variant)
    pins = {name: v for name, v in config.pins.items() if v != AUTO and name in default}
    _refuse_unread_pins(scenario, variants, pins)
    return RunConfig(
        scenario=scenario,
        params=_params(config),
        variants=variants,
        seed=config.seed,
        pins=pins,
        date=_day(config.date),
        launch=launch,
        runs=runs,
        command=" ".join(["python -m harness run", *overrides]),
        jobs=config.jobs,
        strict=config.strict,
    )


def _refuse_unread_pins(scenario: str, variants: Iterable[str], pins: Iterable[str]) -> None:
    """Refuse a release for a package of which every variant that runs names its own."""
    told = catalog.scenario(scenario)
    for name in pins:
        if all(name in told.pins_of(variant) for variant in variants):
            raise UserError(
                f"pins.{name} changes nothing: {', '.join(variants)} name their own release of it. "
                f"To ask another one: variant={RELEASED}"
            )


AUTO = "auto"
"""The value of a pin that the user did not name."""


def quoted(argument: str) -> str:
    """A pin's value as a string to Hydra, which would take 0.10 for the number 0.1."""
    key, sign, value = argument.partition("=")
    if not key.lstrip("+").startswith("pins.") or not sign:
        return argument
    return key + sign + re.sub(r"(?<![\w.'\"])(\d+(?:\.\d+)?)(?![\w.'\"])", r"'\1'", value)


def _register(arguments: Sequence[str]) -> None:
    """Tell Hydra which scenarios there are; raises BrokenScenario where one is named that is."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Schema)
    for name in catalog.sound():
        told = catalog.load(name)
        content = (told, told.Params, tuple(told.SCENARIO.pins))
        if _registered.get(name) == content:
            continue
        try:
            store.store(group="scenario", name=name, node=_node(name), package="_global_")
            _registered[name] = content
        except Exception as error:  # whatever its Params do: a default beyond its bounds, say
            catalog.spoil(name, complaint(error))
    nothing: dict[str, Any] = {"scenario": {}, "pins": {}}
    for name in (*catalog.broken(), ALL):
        _registered.pop(name, None)
        store.store(group="scenario", name=name, node=nothing, package="_global_")
    for name in catalog.broken():
        if f"scenario={name}" in arguments:
            catalog.load(name)


_registered: dict[str, tuple[object, ...]] = {}
"""What Hydra was given of each scenario: a command composes often, and this takes 30 ms."""


def _node(name: str) -> dict[str, Any]:
    module = catalog.load(name)
    module.Params()  # refuses a default beyond its bounds
    return {
        "scenario": OmegaConf.structured(module.Params),
        "pins": dict.fromkeys(module.SCENARIO.pins, AUTO),
        "hydra": {"help": {"footer": _help(name, module)}},
    }


def _help(name: str, module: ModuleType) -> str:
    """What a scenario's knobs are, for Hydra's ``--help``."""
    told = (f"  scenario.{k.name}={k.default}  {meaning(k)}" for k in knobs(module.Params))
    return "\n".join([f"The knobs of {name}:", *told])


def _refuse_extras(config: DictConfig, params: Iterable[str], pins: Iterable[str]) -> None:
    """Refuse keys that ``+key=value`` added: nothing would read them."""
    expected = {
        "": {f.name for f in fields(Schema)} | {"hydra"},
        "scenario.": set(params),
        "launch.": {f.name for f in fields(LaunchConfig)},
        "pins.": set(pins),
    }
    for parent, keys in expected.items():
        node = OmegaConf.select(config, parent.rstrip(".")) if parent else config
        for key in node:
            if key not in keys:
                choices = sorted(f"{parent}{known}" for known in keys - {"hydra"})
                raise UserError(catalog.unknown("key", f"{parent}{key!s}", choices))


def _params(config: DictConfig) -> Any:
    try:
        return OmegaConf.to_object(config.scenario)
    except ValueError as error:  # what Params itself refuses
        raise UserError(str(error)) from None


def _variants(scenario: str, asked: Any) -> tuple[str, ...]:
    known = tuple(catalog.scenario(scenario).variants)
    if asked == ALL:
        return known
    names = list(asked) if isinstance(asked, (list, ListConfig)) else [str(asked)]
    for name in names:
        if name not in (*known, RELEASED):
            raise UserError(catalog.unknown("variant", str(name), [*known, RELEASED, ALL]))
    if not names:
        raise UserError(f"no variant named. Choices: {', '.join([*known, RELEASED, ALL])}.")
    return tuple(dict.fromkeys(names))


def _day(given: str | None) -> str | None:
    if given is None:
        return None
    try:
        day = date.fromisoformat(given)
    except ValueError:
        day = None
    if day is None or day.isoformat() != given:
        raise UserError(f"date={given} is no day: write one like 2024-03-15")
    if day > date.today():
        raise UserError(f"date={given} is yet to come: name a day up to today, {date.today()}")
    return given


@contextmanager
def _as_argv(arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["python -m harness run", *arguments]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _one_line(arguments: Sequence[str]) -> Iterator[None]:
    """Turn what Hydra and OmegaConf raise about the user's overrides into one line."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # have Hydra raise, where it would print and exit 1
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_explained(error, arguments)) from None
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def _explained(error: Exception, arguments: Sequence[str]) -> str:
    text = str(error)
    option = re.search(r"Could not find '(\w+)/([^']*)'", text)
    if option:
        return catalog.unknown(option[1], option[2], _options(option[1]))
    if "You must specify 'scenario'" in text:
        return f"name a scenario: scenario=NAME. Choices: {', '.join([*catalog.names(), ALL])}."
    key = re.search(r"Could not override '([^']+)'", text)
    if key:
        return catalog.unknown("key", key[1], _keys(key[1], arguments))
    why = str(error.__cause__ or "").partition("\n")[0]
    line = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return f"{line}: {why}" if why else line


def _options(group: str) -> Sequence[str]:
    return [*catalog.names(), ALL] if group == "scenario" else LANES


def _keys(path: str, arguments: Sequence[str]) -> list[str]:
    """The keys beside the one that was not found, as they would be typed."""
    parent, _, _ = path.rpartition(".")
    # Of a sweep, the first of its choices.
    chosen = [a.partition(",")[0] for a in arguments if re.match(r"(scenario|launch)=", a)]
    with hydra.initialize_config_dir(CONFIGS, version_base="1.3"):
        config = hydra.compose("config", overrides=chosen)
    node = OmegaConf.select(config, parent) if parent else config
    return [f"{parent}.{key!s}" if parent else str(key) for key in node or ()]
