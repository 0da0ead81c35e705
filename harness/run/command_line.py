"""Overrides -> RunConfig, composed by Hydra. The only module that imports Hydra.

Hydra composes once, in the parent. Each scenario's ``Params`` is registered as an option of the
group ``scenario``, so a new scenario needs no YAML.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from harness.bugs import catalog
from harness.bugs.api.spec import RELEASED, Scenario
from harness.releases import sources
from harness.run.run_config import ALL, AUTO, RunConfig, Schema, read, refuse_extras
from harness.system.errors import UserError, unknown
from harness.system.files import ROOT
from harness.system.installation import PROGRAM

CONFIGS = str(ROOT / "configs")
KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
"""What may be written for a value, by the name that OmegaConf has for its type."""
LISTS = ("variant", "patch")
"""Keys that take a list: one run has all of its values."""
HELP = {"--help", "-h", "--info", "-i"}


def run(arguments: Sequence[str], job: Callable[[list[RunConfig]], None]) -> None:
    """Run ``arguments`` as a Hydra application that calls ``job`` for each composed configuration.

    ``job`` gets a list with one RunConfig, or with one for each scenario if ``scenario=all``. All
    of Hydra's command line works, ``--multirun``, ``--cfg``, ``--help``, sweepers, but no launcher:
    ``job`` must be called here. Raises UserError for what cannot be composed."""
    if any(word.startswith("hydra/launcher=") for word in arguments):
        raise UserError("hydra/launcher has no effect here: on=slurm sends runs to Slurm")
    begun = False
    refused: list[Exception] = []
    succeeded = False
    sweep: Path | None = None

    @hydra.main(version_base="1.3", config_path=CONFIGS, config_name="config")
    def task(config: DictConfig) -> None:
        nonlocal begun, succeeded, sweep
        begun = True
        choice = HydraConfig.get()
        if choice.mode is RunMode.MULTIRUN:
            sweep = Path(choice.sweep.dir).absolute()
        try:
            job(selected(config, choice.runtime.choices["scenario"], choice.overrides.task))
        except Exception as error:
            refused.append(error)  # if raised here, Hydra would print another line
            return
        succeeded = True

    arguments = [understood(a) for a in arguments]
    if HELP & set(arguments) and not any(a.startswith("scenario=") for a in arguments):
        # Help shows the keys of one scenario. It comes first: --info may take the next word.
        arguments = [*(f"scenario={n}" for n in catalog.sound()[:1]), *arguments]
    _refuse_options(arguments)
    _register(arguments)
    try:
        with _as_argv(arguments), _one_line(arguments):
            task()
    except ValueError as error:  # Hydra raises it for lane=null, for example
        if begun:
            raise
        raise UserError(f"{' '.join(arguments)}: {error}") from None
    if refused and sweep and not succeeded:
        _remove(sweep)
    if refused:
        raise refused[0]


def _refuse_options(arguments: Sequence[str]) -> None:
    """Raise UserError for options that Hydra would refuse with its whole usage."""

    def refuse(message: str) -> NoReturn:
        raise UserError(f"{message} (see {PROGRAM} run --help)")

    parser = get_args_parser()
    parser.error = refuse  # type: ignore[method-assign]
    parser.parse_args(list(arguments))


def _remove(sweep: Path) -> None:
    """Remove the folder that Hydra made for a sweep without a result, and empty ones above it."""
    (sweep / "multirun.yaml").unlink(missing_ok=True)
    with suppress(OSError):
        for folder in (sweep, sweep.parent, sweep.parent.parent):
            folder.rmdir()


def compose(arguments: Sequence[str]) -> RunConfig:
    """The RunConfig of the overrides of a single run."""
    return _composed(arguments, read)


Read = TypeVar("Read")


def _composed(
    arguments: Sequence[str], reader: Callable[[DictConfig, str, Sequence[str]], Read]
) -> Read:
    """Compose, and call ``reader`` with the configuration, its scenario and its overrides."""
    _register(arguments)
    arguments = [understood(a) for a in arguments]
    with _one_line(arguments), hydra.initialize_config_dir(CONFIGS, version_base="1.3"):
        config = hydra.compose("config", overrides=list(arguments), return_hydra_config=True)
        return reader(config, config.hydra.runtime.choices["scenario"], arguments)


def compose_each(names: Iterable[str], words: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of several scenarios with the same overrides; broken scenarios come last.

    Hydra composes only once, because that takes 0.1 s.
    """
    names, lost = list(names), catalog.broken()
    sound = [name for name in names if name not in lost]
    if not sound:
        catalog.load(names[0])  # raises BrokenScenario
    if len(sound) == 1:
        configs = [compose([f"scenario={sound[0]}", *words])]
    else:
        configs = _composed(
            [f"scenario={ALL}", *words], lambda *composed: _several(sound, *composed)
        )
    return [*configs, *(_unread(configs[0], name) for name in names if name in lost)]


def selected(config: DictConfig, scenario: str, overrides: Sequence[str]) -> list[RunConfig]:
    """The RunConfigs of a composed configuration: one, or one for each scenario of all or of a
    package."""
    of_package = catalog.of_package(scenario)
    if scenario != ALL and not of_package:
        return [read(config, scenario, overrides)]
    variant, names = config.variant, of_package or catalog.sound()
    fitting = [n for n in names if _has_variant(catalog.scenario(n), variant)]
    if not fitting:
        raise UserError(f"no scenario has the variant {variant}")
    chosen = _several(fitting, config, scenario, overrides)
    broken = () if of_package else catalog.broken()
    return [*chosen, *(_unread(chosen[0], name) for name in broken)]


def _several(
    names: Iterable[str], config: DictConfig, _: str, overrides: Sequence[str]
) -> list[RunConfig]:
    """The RunConfigs of several scenarios, each with its own defaults."""
    refuse_extras(config, (), ())
    others = [word for word in overrides if not word.startswith("scenario=")]
    configs = []
    for name in names:
        copy = config.copy()
        OmegaConf.set_struct(copy, False)
        copy.scenario = OmegaConf.structured(catalog.scenario(name).params)
        configs.append(read(copy, name, [f"scenario={name}", *others]))
    return configs


def _unread(config: RunConfig, name: str) -> RunConfig:
    """A RunConfig for a broken scenario among others: running it fails with the reason."""
    return replace(config, scenario=name, params=None, pins={})


def _has_variant(scenario: Scenario, variant: Any) -> bool:
    """Whether a scenario has the variant that was chosen for all; a list must fit every
    scenario."""
    return not isinstance(variant, str) or variant in (ALL, RELEASED, *scenario.variants)


def understood(argument: str) -> str:
    """An argument as Hydra is to read it.

    The value of a pin is quoted, because Hydra would read 0.10 as the number 0.1. Raises UserError
    for ``~KEY``, with which Hydra would remove a key that we read.
    """
    key, sign, value = argument.partition("=")
    if key.startswith("~") and not key.startswith("~hydra"):
        raise UserError(f"{key}: no key can be removed: write KEY=VALUE")
    if not key.lstrip("+").startswith("pins.") or not sign:
        return argument
    if sources.is_one(value):
        return f"{key}='{value}'"
    return key + sign + re.sub(r"(?<![\w.'\"])(\d+(?:\.\d+)?)(?![\w.'\"])", r"'\1'", value)


def _register(arguments: Sequence[str]) -> None:
    """Register the scenarios with Hydra: those that are chosen with their parameters, and the
    others by name, as it copies its store often. Raises BrokenScenario for a broken one."""
    store = ConfigStore.instance()
    store.store(name="schema", node=Schema)
    nothing: dict[str, Any] = {"scenario": {}, "pins": {}}
    chosen = {word for a in arguments if a.startswith("scenario=") for word in re.split(r"\W+", a)}
    if {"glob", "choice"} & chosen:  # Hydra's patterns
        chosen.update(catalog.sound())
    for name in (*catalog.names(), *catalog.subjects(), ALL):
        is_chosen = name in chosen and name in catalog.names()
        node = _node(name, catalog.scenario(name)) if is_chosen else nothing
        store.store(group="scenario", name=name, node=node, package="_global_")


def _node(name: str, bug: Scenario) -> dict[str, Any]:
    return {
        "scenario": OmegaConf.structured(bug.params),
        "pins": dict.fromkeys(bug.pins, AUTO),
        "hydra": {"help": {"footer": _help(name, bug)}},
    }


def _help(name: str, bug: Scenario) -> str:
    """The parameters of a scenario, for Hydra's ``--help``."""
    lines = (f"  scenario.{k}={knob.default}  {knob.meaning}" for k, knob in bug.knobs.items())
    return "\n".join([f"The parameters of {name}:", *lines])


@contextmanager
def _as_argv(arguments: Sequence[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = [f"{PROGRAM} run", *arguments]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _one_line(arguments: Sequence[str]) -> Iterator[None]:
    """Turn an error of Hydra or OmegaConf about the overrides into a UserError of one line."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints the error and exits
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
    if option and option[1] == "scenario":
        return catalog.unknown_scenario(option[2], ALL)
    if option:
        choices = sorted(file.stem for file in Path(CONFIGS, option[1]).glob("*.yaml"))
        return unknown(option[1], option[2], choices)
    if "You must specify 'scenario'" in text:
        return f"name a scenario: scenario=NAME, or scenario={ALL}. '{catalog.LIST}' shows them"
    word = re.search(r"parsing override '([^']+)'\s+missing EQUAL", text)
    if word:
        example = word[1] if word[1] in catalog.names() else "bf16_clip"
        return f"'{word[1]}' is no KEY=VALUE; a scenario is named by scenario={example}"
    several = re.search(r"Ambiguous value for argument '([^']+)'", text)
    if several:
        key, _, value = several[1].partition("=")
        if key in LISTS:
            return f"{several[1]}: write several values as a list: {key}=[{value}]"
        return f"{several[1]}: several values need --multirun, which runs them one after another"
    key = re.search(r"Could not override '([^']+)'", text)
    if key:
        return unknown("key", key[1], _keys(key[1], arguments))
    if isinstance(error, OverrideParseException):
        return f"'{error.override}' cannot be read: write KEY=VALUE, or KEY=\"'VALUE'\""
    preset = re.search(r"In 'preset/(\w+)'.*full_key: ([\w.]+)", text, re.DOTALL)
    if preset:
        return f"preset={preset[1]} is for another scenario: this one has no {preset[2]}"
    why = str(error.__cause__ or "").partition("\n")[0]
    merged = re.match(r"Error merging override (.+)", text)
    if merged and "is not a subclass of" in why:  # a value for a group of keys
        group = merged[1].partition("=")[0]
        return unknown("key", group, _keys(f"{group}.", arguments))
    if merged and (line := _mistyped(merged[1], why)):
        return line
    line = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return f"{line}: {why}" if why else line


def _mistyped(word: str, why: str) -> str:
    """What may be written for a value of the wrong type; empty if OmegaConf has another reason."""
    kind = re.search(r"converted to (\w+)|not a valid (bool)", why)
    if kind:
        return f"{word}: write {KINDS.get(kind[1] or kind[2], kind[1] or kind[2])}"
    if "is not Optional" in why:
        return f"{word}: null is no value, choose one or leave this out"
    return ""


def _keys(path: str, arguments: Sequence[str]) -> list[str]:
    """The keys next to one that does not exist, as a user would type them."""
    parent, _, _ = path.rpartition(".")
    # In a sweep, the first choice.
    chosen = [a.partition(",")[0] for a in arguments if re.match(r"(scenario|lane|on)=", a)]
    with hydra.initialize_config_dir(CONFIGS, version_base="1.3"):
        config = hydra.compose("config", overrides=chosen)
    node = OmegaConf.select(config, parent) if parent else config
    return [f"{parent}.{key!s}" if parent else str(key) for key in node or ()]
